"""The rounds that a ledger holds before a training."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from keras_dp.accountants.replay import Replay
from keras_dp.errors import CalibrationError
from keras_dp.ledger import (
    AccountRecord,
    CorrelatedSum,
    CountedRound,
    PrivacyLedger,
    Round,
    RunRecord,
    ThresholdedSum,
)
from keras_dp.planning.calibration import check_below_share_of, default_delta
from keras_dp.recipes.training_data import TrainingData
from keras_dp.spending import PrivacyTarget, RunDetails
from keras_dp.training.advice.condition import judge
from keras_dp.training.advice.of_trainings import TARGETS


class HeldRounds(NamedTuple):
    """The rounds of a ledger that count towards a target, and the target.

    They are those that reports count: of a run that kept to its plan, all that
    was planned, also what did not run. So the epsilon to publish stays below
    the target, too.
    """

    ledger: PrivacyLedger
    target: PrivacyTarget
    replay: Replay

    @classmethod
    def of(
        cls,
        ledger: PrivacyLedger,
        target: PrivacyTarget,
        before: RunRecord | None = None,
    ) -> Self:
        """Returns what counts of all runs, or of those before a run."""
        replay = Replay(ledger)
        if before is not None:
            replay = replay.until(before.number)
        return cls(ledger, target, replay.that_count().together)

    @classmethod
    def asked(
        cls,
        ledger: PrivacyLedger,
        data: TrainingData,
        target_epsilon: float,
        delta: float | None,
    ) -> Self:
        """Returns what counts towards a target for the units of some data.

        Their number decides on the delta, where none is given.
        """
        units = data.units_of(ledger.header.rows_per_unit)
        delta = default_delta(units) if delta is None else delta
        check_below_share_of(units, delta)
        judge(TARGETS, target_epsilon)
        return cls.of(ledger, PrivacyTarget(target_epsilon, delta))

    @property
    def rounds(self) -> tuple[CountedRound, ...]:
        """The rounds that count."""
        return self.replay.rounds

    @property
    def place(self) -> str:
        """Where the ledger is kept."""
        return self.ledger.name or "in memory"

    @property
    def counted(self) -> str:
        """How many rounds count, for a person."""
        count = sum(count for _, count in self.rounds)
        if count <= len(self.ledger):
            return f"{count:,} rounds"
        return f"{count:,} rounds, with all that interrupted runs had planned"

    @property
    def epsilon(self) -> float:
        """The epsilon of the rounds at the delta of the target."""
        return self.replay.claim(delta=self.target.delta).epsilon

    @property
    def terms(self) -> dict[str, Any]:
        """The arguments on target and ledger that `planning` takes."""
        return {
            "target_epsilon": self.target.epsilon,
            "delta": self.target.delta,
            "ledger": self.replay,
        }

    @property
    def sentence(self) -> str:
        """How many rounds there are, and the epsilon of these."""
        if not self.rounds:
            return "none so far."
        return (
            f"{self.counted}, of epsilon {self.epsilon:.4g}. They "
            "count towards the target. If they are about other data, use "
            f"another ledger.{self._lost()}"
        )

    @contextlib.contextmanager
    def naming(self, fresh: Round, count: int) -> Iterator[None]:
        """Adds to an error which target has room for a training beside these.

        On a new ledger that training has `count` rounds like `fresh`.
        """
        try:
            yield
        except CalibrationError as error:
            together = self.replay.plus([(fresh, count)])
            needed = together.claim(delta=self.target.delta).epsilon
            if not math.isfinite(needed):
                raise
            raise CalibrationError(
                f"{error} All rounds of a ledger count together: "
                f"target_epsilon={math.ceil(100 * needed) / 100:g} would give "
                "the signal of a first training."
            ) from None

    @contextlib.contextmanager
    def explaining(self, more: str = "") -> Iterator[None]:
        """Adds to an error what the rounds leave of the target, and a text."""
        try:
            yield
        except CalibrationError as error:
            why = f"{self._why()}{more}"
            raise CalibrationError(f"{error}{why}") from error

    def _why(self) -> str:
        """Returns what the rounds leave of the target, or nothing."""
        if not self.rounds:
            return ""
        reasons = f" The ledger {self.place} holds {self.sentence}"
        for run in self.ledger.runs:
            if run.rest is not None:
                reasons += (
                    f" Run {run.number}, {run.name!r}, was interrupted: call "
                    "make_private with the arguments of that time to train for "
                    f"the {run.rest.count:,} rounds that its plan has left."
                )
        events = (event for held, _ in self.rounds for event in held.queries)
        if any(isinstance(event, ThresholdedSum) for event in events):
            reasons += (
                " A vocabulary was adapted in it, whose threshold takes a part "
                "of delta: choose a larger delta, or in a new ledger a smaller "
                "`threshold_delta` and more noise."
            )
        return reasons

    def _lost(self) -> str:
        """Returns which runs cannot go on; empty if there are none."""
        return "".join(
            f" Run {run.number}, {run.name!r}, was interrupted. Its correlated "
            "noise is never saved. So it is paid for as a whole, and what "
            "follows is a new mechanism."
            for run in self.ledger.runs
            if len(run) < sum(count for _, count in run.plan or ())
            and any(
                isinstance(event, CorrelatedSum)
                for first, _ in run.rounds[:1]
                for event in first.queries
            )
        )


def interrupted_runs(
    ledger: PrivacyLedger, details: RunDetails, account: AccountRecord | None
) -> Iterator[RunRecord]:
    """Yields the runs that a training may continue, the newest first.

    They are paid by its account and have its name and purpose, where these are
    given. Runs of other libraries are not among them.
    """
    paying = None if account is None else account.account.name
    for run in reversed(ledger.runs):
        if (
            run.rest is not None
            and run.start is not None
            and run.start.account == paying
            and not run.start.library
            and details.name in (None, run.start.name)
            and details.purpose in (None, run.start.purpose)
        ):
            yield run


def refunded(
    account: AccountRecord | None, run: RunRecord
) -> AccountRecord | None:
    """Returns an account as if it had paid for no round of a run."""
    if account is None:
        return None
    balance, charges = account.balance, dict(run.charges)
    for round_, count in run.rounds:
        balance = balance.after(charges[round_], -count)
    return account._replace(balance=balance)
