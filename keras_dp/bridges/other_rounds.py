"""The rounds of one run that another library runs."""

import contextlib
import logging
from collections.abc import Iterator, Sequence

from keras_dp import _check
from keras_dp.errors import BudgetExceededError
from keras_dp.ledger import PrivacyLedger, Round
from keras_dp.planning.calibration import check_target_delta
from keras_dp.spending.epsilon_limit import EpsilonLimit, PrivacyTarget
from keras_dp.spending.recording import (
    LARGEST_BLOCK,
    RoundRecorder,
    recording_with,
)
from keras_dp.spending.run import RunDetails, TrainingRun

_LOG = logging.getLogger(__name__)


class OtherRounds:
    """Covers the rounds of one run, each before another library releases it.

    Attributes:
        is_recording: Whether the run is in progress.
        ran: The number of rounds that were covered.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> step = Round(PoissonSampling(0.1), (GaussianSum("all", 1.0, 4.0),))
    >>> rounds = OtherRounds(ledger, library="other 1.0", note="", most=2,
    ...                      target_epsilon=None, delta=1e-5, run=None)
    >>> with rounds.recording():
    ...     for _ in range(3):
    ...         rounds.cover(step)
    >>> ledger.runs[0].outcome, len(ledger)
    ('finished', 2)
    """

    def __init__(
        self,
        ledger: PrivacyLedger,
        *,
        library: str,
        note: str,
        most: int | None,
        target_epsilon: float | None,
        delta: float,
        run: RunDetails | str | None,
        scheduled: Sequence[tuple[Round, int]] | None = None,
    ) -> None:
        """Starts without a row in the ledger.

        Args:
            ledger: Where the rounds are recorded.
            library: The name and version of the library that runs them.
            note: The parts of the library that run, for the description.
            most: The most rounds that will run; `None` if nobody knows.
            target_epsilon: The largest epsilon of the ledger, > 0; `None` for
                no target.
            delta: The delta of the target and of the plan, in (0, 1).
            run: The name or the details of the run.
            scheduled: All rounds in order, counted; `None` if the first one
                stands for all.
        """
        _check.kind(PrivacyLedger, ledger=ledger)
        if most is not None:
            _check.integer_at_least(1, steps=most)
        check_target_delta(delta)
        limit, details = None, RunDetails.of(run)
        if target_epsilon is not None:
            limit = EpsilonLimit(PrivacyTarget(target_epsilon, delta), ledger)
        of_ledger = TrainingRun(
            ledger,
            details,
            library=library,
            most=most,
            limit=limit,
            schedule=lambda _: None if scheduled is None else [*scheduled],
            delta=delta,
        )
        of_ledger.note = note
        self.is_recording, self.ran = False, 0
        # A run that is continued has its own number of rounds left.
        self._most = most if details.continues is None else None
        self._planned: Round | None = None
        self._left = LARGEST_BLOCK
        self._end: BudgetExceededError | None = None
        self._recorder = RoundRecorder[None](
            of_ledger,
            self._plan,
            events_of=lambda _: self._plan().queries,
            left=lambda: self._left,
        )

    def cover(self, planned: Round, left: int = LARGEST_BLOCK) -> None:
        """Returns once the ledger durably covers one more round.

        Args:
            planned: The round. It may differ from the one before.
            left: How many equal rounds may come, this one included.

        Raises:
            BudgetExceededError: There is no room for the round.
            LedgerWriteError: The ledger could not be written. Nothing may be
                released.
        """
        try:
            if self.ran == self._most:
                self._recorder.ran_out = True
                raise BudgetExceededError(
                    "`steps` must be the most steps of the run. Received: "
                    f"steps={self._most!r}, and one step more. It did not run."
                )
            if planned != self._planned:
                self._recorder.settle()
                self._planned = planned
            self._left = left
            self._recorder.cover()
        except BudgetExceededError as error:
            self._end = error
            raise
        self.ran += 1

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Ends the run with the block, and the block where there is no room.

        Raises:
            BudgetExceededError: There is no room for the first round.
        """
        try:
            with recording_with(self, self._recorder):
                yield
        except BudgetExceededError as error:
            if error is not self._end or not self.ran:
                raise
            _LOG.warning(
                "Training ends after %d steps: one more would exceed the "
                "target epsilon, the account, or the plan of the run.",
                self.ran,
            )

    def _plan(self) -> Round:
        if self._planned is None:
            raise RuntimeError("A round must be planned before it is covered.")
        return self._planned
