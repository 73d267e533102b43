"""A Keras callback that shows epsilon as it grows."""

import time
from typing import Any

import keras
from typing_extensions import override

from keras_dp.accountants import RDP, Accountant
from keras_dp.accountants.normalize.adjacency import (
    Neighbours,
    chosen_neighbours,
)
from keras_dp.ledger import PrivacyLedger


class EpsilonProgress(keras.callbacks.Callback):
    """Adds `epsilon` to the logs: progress bar, `History`, other callbacks.

    Within an epoch the value covers the rounds that are reserved, up to about
    a second of training ahead; at its end it is exact. It is computed from
    the whole ledger, earlier runs on the data set included, at most every
    `interval_seconds` and at the end of each epoch.

    Attributes:
        ledger: Where the training is recorded.
        delta: At which epsilon is given, in (0, 1).
        accountant: `RDP()` by default, which takes milliseconds for few
            rounds too.
        neighbours: The adjacency relation; None for the strongest that all
            rounds of the ledger support.
        relation: The adjacency relation of the last value; None before it.
        interval_seconds: Least time between two evaluations.
    """

    def __init__(
        self,
        ledger: PrivacyLedger,
        *,
        delta: float,
        accountant: Accountant | None = None,
        neighbours: Neighbours | None = None,
        interval_seconds: float = 0.5,
    ) -> None:
        super().__init__()
        self.ledger = ledger
        self.delta = delta
        self.accountant = RDP() if accountant is None else accountant
        self.neighbours = neighbours
        self.relation: Neighbours | None = None
        self.interval_seconds = interval_seconds
        self._epsilon = 0.0
        self._evaluated = -float("inf")

    @override
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if time.monotonic() - self._evaluated > self.interval_seconds:
            self._evaluate()
        if logs is not None:
            logs["epsilon"] = self._epsilon

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._evaluate()
        if logs is not None:
            logs["epsilon"] = self._epsilon

    def _evaluate(self) -> None:
        rounds = self.ledger.rounds
        self.relation = chosen_neighbours(rounds, self.neighbours)
        self._epsilon = self.accountant.epsilon(
            rounds, delta=self.delta, neighbours=self.relation
        )
        self._evaluated = time.monotonic()
