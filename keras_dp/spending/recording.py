"""Keeps the ledger ahead of the training loop.

Rounds are reserved in blocks, durably, before the first of them runs, and
settled afterwards. A process that dies leaves its block counted in full. Blocks
grow until one takes about a second, also where an epoch settles them sooner, so
that the cost per step is negligible and so is what a crash over-counts. Where
events change from round to round, a block is one round.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from keras_dp.errors import (
    BudgetExceededError,
    PrivateTrainingError,
    noted_in,
)
from keras_dp.ledger import Reservation, Round, SumQueryEvent
from keras_dp.ledger.rows.row import LARGEST_COUNT
from keras_dp.spending.run import TrainingRun

BLOCK_SECONDS = 1.0
LARGEST_BLOCK = 4096

Plan = Callable[[], Round]
Event = TypeVar("Event")  # The release of one round, as its caller has it.


class RoundRecorder(Generic[Event]):
    """Reserves, counts and settles the rounds of one training loop.

    Attributes:
        ran_out: Whether there was no room when a round was to be reserved.
            Another process may give back what it did not use, but this
            training has ended.

    >>> from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> events = (GaussianSum("gradients", 1.0, 4.0),)
    >>> recorder = RoundRecorder(
    ...     TrainingRun(ledger, most=3),
    ...     lambda: Round(FullDataset(), events),
    ...     events_of=lambda event: events,
    ... )
    >>> for _ in range(3):
    ...     recorder.cover()
    ...     recorder.released(None)
    >>> recorder.end()
    >>> [(run.name, run.outcome, len(run)) for run in ledger.runs]
    [('training', 'finished', 3)]
    """

    def __init__(
        self,
        run: TrainingRun,
        plan: Plan,
        events_of: Callable[[Event], tuple[SumQueryEvent, ...]],
        adapts: Callable[[], bool] = lambda: False,
        left: Callable[[], int] = lambda: LARGEST_BLOCK,
    ) -> None:
        """Starts with nothing reserved.

        Args:
            run: Reserves rounds in the ledger.
            plan: Says what the coming rounds will release; asked once a block.
            events_of: Turns what a round did release into ledger events.
            adapts: Whether the plan may differ from one round to the next.
            left: How many rounds of this plan may come.
        """
        self._run = run
        self._plan, self._events_of = plan, events_of
        self._adapts, self._left = adapts, left
        self._reservation: Reservation | None = None
        self._planned: Round | None = None
        self._reserved = self._used = 0
        self._next_block = 1
        self.ran_out = False
        self._released: list[Event] = []
        self._block_started = self._last_ended = 0.0

    def cover(self) -> None:
        """Returns once the ledger durably covers one more round.

        From then on the round counts, whether it ends or not.

        Raises:
            BudgetExceededError: The round would exceed the target or account.
            LedgerWriteError: The ledger could not be written, or this process
                was forked from the one that reserved the round. Nothing may be
                released.
        """
        if not self._ahead:
            self._reserve()
        if self._reservation is not None:
            self._reservation.check_process()
        self._used += 1

    def released(self, event: Event) -> None:
        """Notes what a covered round released.

        The first of a block is compared with the plan at once, the others at
        the end of the block.
        """
        self._released.append(event)
        self._last_ended = time.monotonic()
        if self._used == 1:
            self._compare()

    def settle(self) -> None:
        """Replaces what is reserved by what was used.

        Raises:
            PrivateTrainingError: A round released something else than was
                planned. It is then in the ledger as well.
        """
        self._measure()
        reservation, self._reservation = self._reservation, None
        used, self._used, self._reserved = self._used, 0, 0
        if reservation is not None:
            reservation.settle(used)
            self._run.settled(unused=reservation.count - used)
        self._compare()

    def end(self, *, failed: bool = False) -> None:
        """Settles, and ends the run.

        Args:
            failed: Whether an exception ends it.

        Raises:
            PrivateTrainingError: As `settle`.
        """
        try:
            self.settle()
        except BaseException as error:
            with noted_in(error):
                self._run.finish(failed=True, exhausted=False)
            raise
        exhausted = not failed and self.is_exhausted
        self._run.finish(failed=failed, exhausted=exhausted)

    @property
    def is_between_blocks(self) -> bool:
        """Whether the next round begins a block."""
        return not self._ahead

    @property
    def is_exhausted(self) -> bool:
        """Whether there is no room for a round more."""
        if self.ran_out:
            return True
        if self._ahead or not self._run.has_limit:
            return False
        return self._run.room(self._plan(), 1) == 0

    @property
    def rounds_left(self) -> int | None:
        """How many rounds like the next may still run under target and account.

        `None` where neither of them limits the training.
        """
        if not self._run.has_limit:
            return None
        left = self._run.room(self._plan(), LARGEST_COUNT)
        return None if left == LARGEST_COUNT else left + self._ahead

    @property
    def _ahead(self) -> int:
        return self._reserved - self._used

    def _reserve(self) -> None:
        self._compare()
        self._measure()
        planned = self._plan()
        # After an interrupt nobody knows whether the block before is settled.
        # It or the next one counts in full, and nothing is left to settle.
        before, self._reservation = self._reservation, None
        try:
            self._reservation = self._run.reserve(
                planned, max(1, min(self._next_block, self._left())), before
            )
        except Exception as error:
            self._reservation = before
            self.ran_out |= isinstance(error, BudgetExceededError)
            raise
        self._planned = planned
        self._reserved, self._used = self._reservation.count, 0
        self._block_started = time.monotonic()

    def _measure(self) -> None:
        """Makes the next block a second's worth, at most four times this."""
        if not self._used:
            return
        # Validation may follow the last release. Some callers note no release.
        seconds = self._last_ended - self._block_started
        if seconds <= 0:
            seconds = max(time.monotonic() - self._block_started, 1e-6)
        a_second = max(1, int(self._used * BLOCK_SECONDS / seconds))
        most = 1 if self._adapts() else 4 * self._next_block
        self._next_block = min(a_second, most, LARGEST_BLOCK)

    def _compare(self) -> None:
        events, self._released = self._released, []
        if not events or self._planned is None:
            return
        planned = self._planned
        actual = [self._events_of(event) for event in events]
        others = [queries for queries in actual if queries != planned.queries]
        for queries in others:
            self._run.record(Round(planned.sampling, queries, planned.seeded))
        if others:
            raise PrivateTrainingError(
                f"{len(others)} rounds released {others[0]!r} where "
                f"{planned.queries!r} was planned: the state of the query was "
                "changed during training. Their answers were withheld. The "
                "ledger holds both. Leave the state to the optimizer, and "
                "train on with a new one."
            )


class Recorded(Protocol):
    """An object that runs rounds, such as an optimizer.

    Attributes:
        is_recording: Whether it runs rounds now.
    """

    is_recording: bool


class UnrecordedRounds:
    """Stands for the recorder where another worker, the chief, records.

    The sums of this worker are released with those of the chief or not at all,
    and the chief covers a round before it takes part.
    """

    # The chief stops, and the others with it.
    is_exhausted = ran_out = is_between_blocks = False
    rounds_left = None

    def cover(self) -> None:
        """Does nothing."""

    def released(self, event: object) -> None:
        """Does nothing: the chief has the same event."""

    def settle(self) -> None:
        """Does nothing."""

    def end(self, *, failed: bool = False) -> None:
        """Does nothing: the chief ends the run."""


@contextlib.contextmanager
def recording_with(
    optimizer: Recorded,
    recorder: RoundRecorder[Any] | UnrecordedRounds,
    *,
    ends_run: bool = True,
) -> Iterator[None]:
    """Marks an optimizer as busy, and settles its rounds at the end.

    Args:
        optimizer: Its rounds are run inside.
        recorder: It covers them.
        ends_run: Whether the run ends with the rounds.

    Raises:
        PrivateTrainingError: The optimizer is training already.
    """
    if optimizer.is_recording:
        raise nested_training()

    def end(*, failed: bool) -> None:
        optimizer.is_recording = False
        if ends_run:
            recorder.end(failed=failed)
        else:
            recorder.settle()

    optimizer.is_recording = True
    try:
        yield
    except GeneratorExit:  # The caller left the loop, and sees no note.
        end(failed=False)
        raise
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt) or (
            isinstance(error, BudgetExceededError) and recorder.ran_out
        )
        with noted_in(error):
            end(failed=not stopped)
        raise
    end(failed=False)


def nested_training() -> PrivateTrainingError:
    """Returns why a training cannot start inside another one."""
    return PrivateTrainingError(
        "A private training must not be started inside another one of "
        "the same model or optimizer, such as from a callback. Start it after "
        "the other one has ended, or with a model and optimizer of its own."
    )
