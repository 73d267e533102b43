"""A Keras callback that shows epsilon as it grows."""

import collections
import time
from collections.abc import Callable
from typing import Any

import keras
from typing_extensions import override

from keras_dp import _check
from keras_dp.accountants import Accountant
from keras_dp.accountants.claim import Claim
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.normalize.trees import with_whole_trees
from keras_dp.accountants.replay import Replay
from keras_dp.budgets import guarantee
from keras_dp.errors import PrivateTrainingError
from keras_dp.keras_internals import print_line
from keras_dp.ledger import PrivacyLedger, Round
from keras_dp.planning.calibration import check_target_delta

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

    `fit` adds this callback unless `callbacks` has one. The log `epsilon`
    counts all rounds of the ledger, also those of earlier runs. If there were
    earlier runs, the log `epsilon_of_run` counts the rounds since the training
    began. If a target or an account limits the training, the log `rounds_left`
    says how many more rounds like the next one it has room for.

    At the end of the training one line names epsilon, delta and the adjacency
    relation, and another line names what is left. If a training of the ledger
    ended before its plan, or if accounts pay, a line between them names the
    epsilon to publish, as reports do. If a unit has several rows in the ledger,
    epsilon is for all of them together.

    The value is exact at the end of an epoch. Within an epoch it is the value
    of the last evaluation. That evaluation also counts the rounds that were
    reserved at that moment, for up to about one second of training.

    Attributes:
        ledger: The ledger of the model, which records the training.
        delta: The delta of the shown epsilon, in (0, 1). By default `fit` takes
            the delta of its target. Without a target it takes `N^-1.1` for N
            records, or 1e-5 if N is unknown.
        accountant: The accountant. By default the tightest one that can replay
            the ledger.
        neighbours: The adjacency relation. By default the strongest one that
            all rounds of the ledger support.
        claim: The last evaluation, `None` before the first one.
        interval_seconds: The shortest time between two evaluations. By default
            half a second, or longer if evaluations take more than 2 % of the
            time.
    """

    def __init__(
        self,
        ledger: PrivacyLedger | None = None,
        *,
        delta: float | None = None,
        accountant: Accountant | None = None,
        neighbours: Neighbours | None = None,
        interval_seconds: float | None = None,
    ) -> None:
        super().__init__()
        if delta is not None:
            check_target_delta(delta)
        self.ledger = ledger
        self.delta = delta
        self.accountant = accountant
        self.neighbours = neighbours
        self.claim: Claim | None = None
        self.interval_seconds = interval_seconds
        self._before: collections.Counter[Round] = collections.Counter()
        self._rounds_left: Callable[[], int | None] = lambda: None
        self._logs: dict[str, float] = {}
        self._next = -float("inf")

    def attach(
        self,
        ledger: PrivacyLedger,
        delta: float,
        rounds_left: Callable[[], int | None],
    ) -> None:
        """Prepares for a training; `fit` calls it.

        Args:
            ledger: Where the training will be recorded.
            delta: The delta, for a callback without one of its own.
            rounds_left: Returns how many more rounds there is room for. `None`
                if nothing limits them.

        Raises:
            PrivateTrainingError: The callback was made for another ledger.
        """
        if self.ledger is not None and not _are_one(self.ledger, ledger):
            raise PrivateTrainingError(
                "`ledger` must be the one that the model's optimizer records "
                f"in. Received: ledger={_check.shown(self.ledger)}, where "
                f"training records in {ledger!r}. Leave it out: "
                "EpsilonProgress takes the model's."
            )
        self.ledger = ledger
        self.delta = delta if self.delta is None else self.delta
        self._rounds_left = rounds_left
        self._before = _counts(ledger)
        self._next = -float("inf")

    @override
    def on_train_begin(self, logs: Any = None) -> None:
        if self.ledger is None:
            raise PrivateTrainingError(
                "EpsilonProgress must be passed to fit of a PrivateModel, "
                "whose ledger it reads."
            )

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
        if self.params.get("verbose") and self.claim and self.ledger:
            sentence = self.claim.sentence(self.ledger.header.unit)
            print_line(
                f"Privacy of all {len(self.ledger):,} rounds of the ledger: "
                f"{sentence}."
            )
            self._print_guarantee()
            left = self._logs.get("rounds_left")
            if left is not None:
                print_line(
                    f"There is room for {int(left):,} more rounds like the "
                    "last."
                )

    def _evaluate(self) -> None:
        if self.ledger is None or self.delta is None:
            return
        started = time.monotonic()
        replay = Replay(self.ledger.rounds, header=self.ledger.header)
        counts = _counts(replay)
        self.claim = self._claimed(replay)
        self._logs = {"epsilon": self.claim.epsilon}
        if self._before:
            new = counts - self._before
            own = with_whole_trees(new.items(), counts.items())
            of_run = self._claimed(replay.of(own))
            self._logs["epsilon_of_run"] = of_run.epsilon
        left = self._rounds_left()
        if left is not None:
            self._logs["rounds_left"] = _Count(left)
        ended = time.monotonic()
        rest = self.interval_seconds
        if rest is None:
            rest = max(_INTERVAL_SECONDS, _SHARE * (ended - started))
        self._next = ended + rest

    def _print_guarantee(self) -> None:
        """Prints what to publish if more was planned than ran."""
        if self.ledger is None or self.delta is None:
            return
        found = guarantee(
            self.ledger,
            delta=self.delta,
            accountant=self.accountant,
            neighbours=self.neighbours,
        )
        if found.ex_post is not None:
            more = "Its accounts promise more"
            if found.basis != "account":
                more = "More rounds were planned"
            print_line(
                f"{more} than ran, and why it ended may tell of the data. "
                f"Publish {found.claim.sentence(self.ledger.header.unit)}."
            )

    def _claimed(self, replay: Replay) -> Claim:
        return replay.claim(
            delta=self.delta or 0.0,
            accountant=self.accountant,
            neighbours=self.neighbours,
        )


def _counts(
    ledger: PrivacyLedger | Replay,
) -> collections.Counter[Round]:
    """Returns how often a ledger holds each round."""
    counts: collections.Counter[Round] = collections.Counter()
    for round_, count in ledger.rounds:
        counts[round_] += count
    return counts


def _are_one(first: PrivacyLedger, second: PrivacyLedger) -> bool:
    """Returns whether two handles are of one ledger."""
    return first is second or first.name == second.name is not None
