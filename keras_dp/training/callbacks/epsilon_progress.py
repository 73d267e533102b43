"""A Keras callback that shows epsilon as it grows."""

import collections
import time
from collections.abc import Callable
from typing import Any

import keras

from keras_dp._override import override
from keras_dp.accountants.claim import Claim
from keras_dp.accountants.normalize.correlated import with_whole_spans
from keras_dp.accountants.replay import Replay
from keras_dp.budgets import guarantee
from keras_dp.keras_internals import print_line
from keras_dp.ledger import PrivacyLedger, Round

# An evaluation is followed by so many times its own seconds of training.
_SHARE, _INTERVAL_SECONDS = 50, 0.5


class _Count(float):
    """A whole number that the progress bar of Keras shows without decimals."""

    def __truediv__(self, other: float) -> "_Count":
        return _Count(float(self) / other)

    def __format__(self, spec: str) -> str:
        return f"{int(self):d}"


class EpsilonProgress(keras.callbacks.Callback):
    """Adds `epsilon` to the logs: progress bar, `History`, other callbacks.

    The log `epsilon` counts all rounds of the ledger, also those of earlier
    runs. If there were earlier runs, the log `epsilon_of_run` counts the rounds
    since the training began. If a target or an account limits the training, the
    log `rounds_left` says how many more rounds like the next one it has room
    for.

    At the end of the training one line names epsilon, delta and the adjacency
    relation, and another line names what is left, if anything is. If a training
    of the ledger ended before its plan, or if accounts pay, a line between them
    names the epsilon to publish, as reports do. If a unit has several rows in
    the ledger, epsilon is for all of them together.

    The value is exact at the end of an epoch. Within an epoch it is the value
    of the last evaluation. That evaluation also counts the rounds that were
    reserved at that moment, for up to about one second of training. Evaluations
    take at most 2 % of the time.
    """

    def __init__(
        self,
        ledger: PrivacyLedger,
        delta: float,
        rounds_left: Callable[[], int | None],
    ) -> None:
        super().__init__()
        self._ledger, self._delta = ledger, delta
        self._rounds_left = rounds_left
        self._before = _counts(ledger)
        self._claim: Claim | None = None
        self._logs: dict[str, float] = {}
        self._next = -float("inf")

    @override
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if time.monotonic() > self._next:
            self._evaluate()
        if logs is not None:
            logs.update(self._logs)

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._evaluate()
        if logs is not None:
            logs.update(self._logs)

    @override
    def on_train_end(self, logs: Any = None) -> None:
        if not self.params.get("verbose") or self._claim is None:
            return
        sentence = self._claim.sentence(self._ledger.header.unit)
        print_line(
            f"Privacy of all {len(self._ledger):,} rounds of the ledger: "
            f"{sentence}."
        )
        self._print_guarantee()
        if left := self._logs.get("rounds_left"):
            print_line(
                f"There is room for {int(left):,} more rounds like the last."
            )

    def _evaluate(self) -> None:
        started = time.monotonic()
        replay = Replay(self._ledger.rounds, header=self._ledger.header)
        counts = _counts(replay)
        self._claim = replay.claim(delta=self._delta)
        self._logs = {"epsilon": self._claim.epsilon}
        if self._before:
            new = counts - self._before
            own = with_whole_spans(new.items(), counts.items())
            of_run = replay.of(own).claim(delta=self._delta)
            self._logs["epsilon_of_run"] = of_run.epsilon
        left = self._rounds_left()
        if left is not None:
            self._logs["rounds_left"] = _Count(left)
        ended = time.monotonic()
        self._next = ended + max(_INTERVAL_SECONDS, _SHARE * (ended - started))

    def _print_guarantee(self) -> None:
        found = guarantee(self._ledger, delta=self._delta)
        if found.ex_post is not None:
            more = "Its accounts promise more"
            if found.basis != "account":
                more = "More rounds were planned"
            print_line(
                f"{more} than ran, and why it ended may tell of the data. "
                f"Publish {found.claim.sentence(self._ledger.header.unit)}."
            )


def _counts(
    ledger: PrivacyLedger | Replay,
) -> collections.Counter[Round]:
    counts: collections.Counter[Round] = collections.Counter()
    for round_, count in ledger.rounds:
        counts[round_] += count
    return counts
