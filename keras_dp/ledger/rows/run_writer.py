"""A run that is being written: the ledger covers its rounds before they run.

Rounds are reserved in blocks, durably, before the first of them runs, and
settled afterwards. A process that dies leaves its block counted in full. Blocks
grow until one takes about a second, also where they are settled sooner, so that
the cost of a round is negligible and so is what a crash over-counts.
"""

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self

from keras_dp import _check
from keras_dp.errors import (
    BudgetExceededError,
    LedgerError,
    LedgerWriteError,
    PrivateTrainingError,
    noted_in,
)
from keras_dp.ledger.events.rounds import Round, SamplingEvent, SumQueryEvent
from keras_dp.ledger.rows import log
from keras_dp.ledger.rows.charges import Charge
from keras_dp.ledger.rows.codec import text_from_round
from keras_dp.ledger.rows.contents import accounts_of, runs_of
from keras_dp.ledger.rows.row import LARGEST_COUNT
from keras_dp.ledger.rows.statements import (
    Outcome,
    RunEnd,
    RunPlan,
    RunStart,
)

BLOCK_SECONDS = 1.0
LARGEST_BLOCK = 4096

Lock = Callable[[], contextlib.AbstractContextManager[log.Database]]
Queries = tuple[SumQueryEvent, ...]


class Allowance(NamedTuple):
    """Says what a run may do next, by one look at the ledger.

    Attributes:
        rounds: How many of the rounds that were asked for may run.
        head: The head of the rows that this follows from. Rounds are covered
            only if the ledger still has it. It is empty where nothing depends
            on the ledger.
        charge: The price of a round for the account; `None` without one.
        plan: The most that the run will do, before its first round.
    """

    rounds: int
    head: str = ""
    charge: Charge | None = None
    plan: RunPlan | None = None


class Forecast(NamedTuple):
    """The rounds that a run will have, as known before the first of them.

    Attributes:
        most: The most rounds that will run; `None` if nobody knows.
        rounds: The rounds in order, counted; empty if all are like the first.
        are_all: Whether no others can follow, as with correlated noise.
    """

    most: int | None = None
    rounds: Sequence[tuple[Round, int]] = ()
    are_all: bool = False


class Limits:
    """The limits of a run. Here it may do anything, and no account pays.

    `spending.RunLimits` limits a run by a target, an account and a plan.

    Attributes:
        most: The most rounds that will run; `None` if nobody knows.
        account: The name of the account that pays; `None` for none.
        is_limited: Whether fewer rounds may be allowed than are asked for.
        row: The row in which the run began; `None` before.
    """

    row: int | None = None
    most: int | None = None
    account: str | None = None
    is_limited: bool = False

    def expect(self, forecast: Forecast) -> None:
        """Is told which rounds will run, before the first of them."""
        self.most = forecast.most

    def allow(self, planned: Round, count: int, own: int) -> Allowance:
        """Returns how many of `count` more rounds may run, and at what price.

        The ledger holds `own` rounds of the run already. It raises if the
        account cannot pay for such a round.
        """
        return Allowance(count, charge=self.charge(planned))

    def charge(self, planned: Round) -> Charge | None:
        """Returns what a round costs, also one that ran already."""
        return None

    def exceeded(
        self, planned: Round, count: int, own: int
    ) -> BudgetExceededError:
        """Returns why there is no room for `count` more rounds."""
        return BudgetExceededError(
            f"`limits` must have room for {count:,} more rounds. Received: "
            f"limits that have less for {planned!r}, after {own:,} rounds. No "
            "round ran."
        )


class _ReservedBlock(NamedTuple):
    """Equal rounds that are reserved, in one row of the ledger."""

    row: int
    rounds: log.Rounds
    round: Round
    size: int


class RunWriter:
    """Covers the rounds of one run, each before anything of it is released.

    `PrivacyLedger.start_run` begins a run. Used in a `with` statement, the run
    ends with the block.

    Guarantee: when `cover` returns, the ledger durably counts the rounds. If
    the process dies at any moment, they and the rest of their block stay
    counted.

    Attributes:
        start: The name, the purpose, the account and the author of the run.
        limits: They say what the run may do.
        note: Text that is added to the description when the run begins.
        row: The number of the row in which it began, which never changes;
            `None` before.
        ran_out: Whether there was no room when a round was to be covered.
            Another process may give back what it did not use, but this run has
            ended.

    >>> from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> step = Round(FullDataset(), (GaussianSum("all", 1.0, 4.0),))
    >>> with ledger.start_run("own loop", plan=[(step, 3)]) as run:
    ...     for _ in range(3):
    ...         run.cover(step)  # Now the sum may be released.
    >>> [(run.name, run.outcome, len(run)) for run in ledger.runs]
    [('own loop', 'finished', 3)]
    """

    def __init__(
        self,
        lock: Lock,
        start: RunStart,
        limits: Limits | None = None,
        continues: int | None = None,
    ) -> None:
        """Starts without a row in the ledger.

        Args:
            lock: Runs one transaction of the ledger.
            start: The content of the row with which it begins.
            limits: They say what the run may do; anything by default.
            continues: The number of the interrupted run that goes on; `None`
                for a new run.
        """
        self.start, self.note, self.ran_out = start, "", False
        self.row: int | None = None
        self.limits = Limits() if limits is None else limits
        self._lock, self._continues = lock, continues
        self._own, self._planned = 0, 0
        # Covered rounds of which `released` noted nothing.
        self._awaited = 0
        self._block: _ReservedBlock | None = None
        self._used, self._next_size = 0, 1
        self._released: list[tuple[Callable[[], Queries], int]] = []
        self._covered: Round | None = None
        self._is_compared = self._is_full = self._is_ended = False
        self._is_doubtful = False
        self._block_started = self._last_ended = 0.0
        self._process, self._mutex = os.getpid(), threading.RLock()

    def begin(self) -> Self:
        """Begins the run before its first round, and returns it.

        Raises:
            LedgerWriteError: The run was not begun.
            ValueError: The ledger has no such account, or no such run that can
                be continued.
        """
        with self._mutex:
            if self.row is None:
                with self._lock() as database:
                    row = self._begun(database)
                self.row = self.limits.row = row
        return self

    @property
    def number(self) -> int | None:
        """The number of the run: 1 for the first; `None` before it began."""
        if self.row is None:
            return None
        with self._lock() as database:
            return log.count_of(database, RunStart.kind, self.row)

    def plan(
        self,
        rounds: Iterable[tuple[Round, int]],
        *,
        delta: float | None = None,
    ) -> None:
        """Writes the plan of the run: the most that it will do.

        Write it before the first round. A plan does not limit the run. If the
        run keeps to its plan, the cost of the plan is a guarantee, even if
        somebody stops the run early because of its answers.

        Args:
            rounds: Pairs of a round and the largest number of times that it
                will run.
            delta: The delta that the epsilon of the run will be published
                with, in (0, 1), which `keras-dp report` then takes.

        Raises:
            LedgerWriteError: The plan was not written.
            TypeError: `rounds` holds something else than pairs.
            ValueError: A number is below 1, or `delta` is not in (0, 1).
        """
        plan = RunPlan.of(rounds, delta)
        with self._mutex:
            row = self.begin().row
            with self._lock() as database:
                log.append_statement(database, plan, run=row)
            self._planned += sum(count for _, count in plan.rounds)

    def cover(
        self,
        planned: Round,
        count: int = 1,
        *,
        most: int = LARGEST_BLOCK,
    ) -> None:
        """Returns once the ledger durably covers `count` more rounds.

        From then on they count, whether they end or not.

        Args:
            planned: The sample and the releases of each of the rounds.
            count: The rounds that will run before the next call, >= 1.
            most: How many equal rounds may come, these included. The ledger
                covers no more of them ahead.

        Raises:
            BudgetExceededError: The target, the account or the plan has no
                room for the rounds.
            LedgerWriteError: The ledger could not be written, the run has
                ended, no account pays, or this process was forked from the one
                that began the run. Nothing may be released.
            OverflowError: The number of all rounds would not fit 64 bits.
            ValueError: `count` or `most` is below 1.
        """
        _check.kind(Round, planned=planned)
        _check.integer_at_least(1, count=count, most=most)
        with self._mutex:
            self._check_process()
            block = self._block
            if (
                block is None
                or self._is_doubtful
                or block.size - self._used < count
                or (block.round is not planned and block.round != planned)
            ):
                self._reserve(planned, int(count), int(most))
            self._used += int(count)
            self._awaited += int(count)

    def cover_some(
        self, planned: Round, count: int, *, most: int = LARGEST_BLOCK
    ) -> int:
        """Covers up to `count` more rounds, and returns how many, at least one.

        It covers what is left of the present block, or a new block. So a block
        of the ledger is also what runs at once.

        Args:
            planned: As in `cover`.
            count: The most rounds that will run before the next call, >= 1.
            most: As in `cover`.

        Raises:
            BudgetExceededError: As `cover`, if there is no room for one round.
            LedgerWriteError: As `cover`.
            OverflowError: As `cover`.
            ValueError: As `cover`.
        """
        _check.integer_at_least(1, count=count)
        with self._mutex:
            self.cover(planned, most=most)
            more = min(count - 1, self._ahead)
            self._used += more
            self._awaited += more
        return 1 + more

    def released(self, queries: Callable[[], Queries], count: int = 1) -> None:
        """Notes what covered rounds released, to compare it with the plan.

        The first of a block is compared at once, the others at the end of the
        block. A run that never calls this is not compared.

        Args:
            queries: Returns what each of the rounds released.
            count: How many rounds they are, >= 1.

        Raises:
            PrivateTrainingError: It is something else than was covered, and the
                ledger then holds both; or no covered rounds are left that could
                have released it.
        """
        _check.integer_at_least(1, count=count)
        with self._mutex:
            if self._awaited < count:
                raise PrivateTrainingError(
                    "`released` must be called once for each round that was "
                    "covered. Received: a release of no such round, which the "
                    "ledger does not count. It must not be published. Call "
                    "`cover` before each round."
                )
            self._awaited -= count
            self._released.append((queries, count))
            self._last_ended = time.monotonic()
            if not self._is_compared:
                self._is_compared = True
                self._compare()

    def settle(self, used: int | None = None) -> None:
        """Counts the rounds that ran, in place of the whole block.

        Args:
            used: The rounds of the block that ran; by default all that were
                covered.

        Raises:
            LedgerIntegrityError: The reservation in the ledger was edited.
            LedgerWriteError: The block still counts in full, unless the commit
                itself failed: then the message says that it may count as
                `used` rounds.
            PrivateTrainingError: A round released something else than was
                covered.
            ValueError: `used` is not between 0 and the size of the block, or is
                below the number of rounds that released something.
        """
        with self._mutex:
            block, covered = self._block, self._used
            ran = covered if used is None else used
            size = 0 if block is None else block.size
            _check.integer_at_least(0, used=ran)
            if block is not None or used is not None:
                _check_used(ran, max(0, covered - self._awaited), size)
            self._measure()
            if block is not None:
                self._block, self._used = None, 0
                try:
                    with self._lock() as database:
                        log.settle(
                            database, block.row, block.rounds, size, int(ran)
                        )
                except Exception:
                    # The ledger may count `ran` rounds: no more may come of it.
                    self._block, self._used = block, covered
                    self._is_doubtful = True
                    raise
                self._own -= size - int(ran)
                self._awaited = max(0, self._awaited - (covered - int(ran)))
            self._used, self._is_doubtful = 0, False
            self._compare()

    def record(
        self,
        sampling: SamplingEvent,
        queries: Iterable[SumQueryEvent],
        count: int = 1,
        *,
        seeded: bool = False,
    ) -> None:
        """Adds `count` rounds that ran already, as `PrivacyLedger.record` does.

        Args:
            sampling: How the sample of each round was drawn.
            queries: The sums that were released over each sample, at least
                one.
            count: The number of rounds, >= 1.
            seeded: Whether the caller chose the seed of the rounds.

        Raises:
            BudgetExceededError: The account has no room for the rounds.
            LedgerWriteError: The rounds were not recorded, as in `cover`.
            OverflowError: The number of all rounds would not fit 64 bits.
        """
        _check.integer_at_least(1, count=count)
        round_ = Round(sampling, tuple(queries), seeded)
        with self._mutex:
            row = self.begin().row
            price = self.limits.charge(round_)
            rounds = log.Rounds(text_from_round(round_), row, price)
            with self._lock() as database:
                self._check_price(database, price)
                log.append_record(database, rounds, int(count))
            self._own += int(count)

    def finish(self, outcome: Outcome | None = None) -> None:
        """Settles, and ends the run, which can then release nothing more.

        Args:
            outcome: "finished" if the run ended as planned; "budget" if a
                target or an account left no room; "stopped" if somebody ended
                it early, perhaps because of its answers; "failed" if an
                exception ended it. By default what the rounds show.

        Raises:
            LedgerWriteError: The run has ended already, or the ledger could not
                be written.
            PrivateTrainingError: As `settle`. The run then failed.
        """
        if self.row is None:
            return
        try:
            self.settle()
        except BaseException as error:
            with noted_in(error):
                self._end("failed")
            raise
        self._end(outcome or self._outcome())

    def abandon(self) -> None:
        """Ends the run if it is still open, when nothing more can come.

        Where the ledger was closed before, it shows later that the process is
        gone.
        """
        with contextlib.suppress(LedgerError):
            if self.is_open:
                self.finish()

    @property
    def is_open(self) -> bool:
        """Whether the run has begun, and not ended."""
        return self.row is not None and not self._is_ended

    def is_exhausted(self, planned: Round) -> bool:
        """Returns whether there is no room for a round more.

        Args:
            planned: The round that would come next.
        """
        if self.ran_out:
            return True
        if self._ahead or not self.limits.is_limited:
            return False
        self._is_full = not self.limits.allow(planned, 1, self._own).rounds
        return self._is_full

    def rounds_left(self, planned: Round) -> int | None:
        """Returns how many rounds like the next may still run.

        `None` where neither target, account nor plan limits the run.

        Args:
            planned: The round that would come next.
        """
        if not self.limits.is_limited:
            return None
        left = self.limits.allow(planned, LARGEST_COUNT, self._own).rounds
        return None if left == LARGEST_COUNT else left + self._ahead

    @property
    def is_between_blocks(self) -> bool:
        """Whether the next round begins a block."""
        return not self._ahead

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: object
    ) -> None:
        if self._is_ended:
            return
        if error is None or isinstance(error, GeneratorExit):
            self.finish()  # The caller left the loop, and sees no note.
            return
        stopped = isinstance(error, KeyboardInterrupt) or (
            isinstance(error, BudgetExceededError) and self.ran_out
        )
        with noted_in(error):
            self.finish(None if stopped else "failed")

    def __repr__(self) -> str:
        return f"<RunWriter name={self.start.name!r}, row={self.row}>"

    @property
    def _most(self) -> int | None:
        """The most rounds of the run: more would break its plan."""
        most = self.limits.most
        return (self._planned or None) if most is None else most

    @property
    def _ahead(self) -> int:
        return 0 if self._block is None else self._block.size - self._used

    def _reserve(self, planned: Round, count: int, most: int) -> None:
        """Reserves the next block, as large as there is room and use for."""
        if self._ahead or self._is_doubtful:
            self.settle()
        self._compare()
        self._measure()
        size = max(count, min(self._next_size, most) // count * count)
        if self._most is not None:
            size = max(count, min(size, self._most - self._own))
        head = ""
        try:
            while True:
                allowed = self.limits.allow(planned, size, self._own)
                if allowed.rounds < count:
                    raise self.limits.exceeded(planned, count, self._own)
                before, head = head, self._append(planned, allowed)
                if not head:
                    break
                # Another process was faster: there may be less room. If nobody
                # wrote since, the limits look at something else.
                if head == before:
                    raise ValueError(
                        "`limits` must be of the ledger of the run. Received: "
                        "limits of a ledger whose last row is another one. No "
                        "round ran. Pass limits=RunLimits(ledger) of the "
                        "ledger that begins the run."
                    )
        except BudgetExceededError:
            self.ran_out = True
            raise
        self._covered, self._is_compared = planned, False
        self._block_started, self._is_full = time.monotonic(), False

    def _append(self, planned: Round, allowed: Allowance) -> str:
        """Ends one block and begins the next, in one transaction.

        The first block also begins the run, and writes its plan. If the ledger
        has another head than was seen, it changes nothing, and returns that
        head; else "".
        """
        text = text_from_round(planned)
        # After an interrupt nobody knows whether the block before is settled.
        # It or the next one counts in full, and nothing is left to settle.
        before, self._block = self._block, None
        try:
            with self._lock() as database:
                head = log.meta(database)["head"]
                if allowed.head not in ("", head):
                    self._block = before
                    return head
                row = self.row
                if row is None:
                    row = self._begun(database)
                    if allowed.plan is not None:
                        log.append_statement(database, allowed.plan, run=row)
                if before is not None:
                    log.settle(
                        database,
                        before.row,
                        before.rounds,
                        before.size,
                        before.size,
                    )
                self._check_price(database, allowed.charge)
                rounds = log.Rounds(text, row, allowed.charge)
                seq = log.append_reservation(database, rounds, allowed.rounds)
        except Exception:
            self._block = before
            raise
        self.row, self._used = row, 0
        self.limits.row = row
        self._block = _ReservedBlock(seq, rounds, planned, allowed.rounds)
        self._own += allowed.rounds
        return ""

    def _check_price(
        self, database: log.Database, price: Charge | None
    ) -> None:
        """Raises for one that is malformed, or not of the run's account."""
        if price is None:
            return
        price.as_text()  # Raises if it is malformed.
        names = {
            each.number: each.account.name for each in accounts_of(database)
        }
        if names.get(price.account) != self.start.account:
            raise ValueError(
                "`charge` must be of the account of the run, "
                f"{self.start.account!r}. Received: charge={price!r}. "
                "Take `budgets.charge_of` of this account."
            )

    def _begun(self, database: log.Database) -> int:
        """Writes the first row of the run, and returns its number.

        Raises:
            ValueError: The ledger has no such account, or no such run that can
                be continued.
        """
        self._check_process()
        start, number = self.start, self._continues
        if number is None:
            names = [each.account.name for each in accounts_of(database)]
            if start.account is not None and start.account not in names:
                raise ValueError(
                    f"`account` must be the name of an account of the ledger. "
                    f"Received: account={start.account!r}. The ledger has "
                    f"{names!r}."
                )
            words = filter(None, (start.description, self.note))
            self.start = dataclasses.replace(
                start, description="; ".join(words)
            )
            return log.append_statement(database, self.start)
        runs = {run.number: run for run in runs_of(log.rows(database))}
        run = runs.get(number)
        if run is None or run.start is None or run.rest is None:
            raise ValueError(
                "`number` must be that of a run that was interrupted, and "
                f"has rounds of its plan left. Received: number={number!r}."
                " Start another run."
            )
        if self.limits.account != run.start.account:
            raise ValueError(
                "`limits` must be of the account that pays for the run, "
                f"{run.start.account!r}. Received: limits of the account "
                f"{self.limits.account!r}. Pass limits=RunLimits(ledger, "
                "account=...)."
            )
        if self.limits.most not in (None, run.rest.count):
            raise ValueError(
                "`limits` must know what the run has left. Received: limits of "
                f"{self.limits.most:,} rounds, for a run that has "
                f"{run.rest.count:,} left by now: another training went on "
                "with it. No round ran. Continue the run anew."
            )
        self.start = dataclasses.replace(
            run.start,
            author=start.author,
            library=start.library or run.start.library,
        )
        log.append_statement(database, self.start, run=run.row)
        self._planned = run.rest.count
        return run.row

    def _check_process(self) -> None:
        """Raises unless this process made the writer.

        A forked process has a copy of the block, and would run the same rounds
        a second time.
        """
        if self._process != os.getpid():
            raise LedgerWriteError(
                "The run was begun before this process was forked, by its "
                "parent. This process must not release its rounds. Open the "
                "ledger in this process, and start another run."
            )

    def _measure(self) -> None:
        """Makes the next block a second's worth, at most four times this."""
        if not self._used:
            return
        # Validation may follow the last release. Some callers note no release.
        seconds = self._last_ended - self._block_started
        if seconds <= 0:
            seconds = max(time.monotonic() - self._block_started, 1e-6)
        a_second = max(1, int(self._used * BLOCK_SECONDS / seconds))
        self._next_size = min(a_second, 4 * self._next_size, LARGEST_BLOCK)

    def _compare(self) -> None:
        released, self._released = self._released, []
        planned = self._covered
        if not released or planned is None:
            return
        found = [(queries(), count) for queries, count in released]
        others = [each for each in found if each[0] != planned.queries]
        for queries, count in others:
            self.record(planned.sampling, queries, count, seeded=planned.seeded)
        if others:
            raise PrivateTrainingError(
                f"{sum(count for _, count in others)} rounds released "
                f"{others[0][0]!r} where "
                f"{planned.queries!r} was planned: the state of the query was "
                "changed during training. Their answers were withheld. The "
                "ledger holds both. Leave the state to the optimizer, and "
                "train on with a new one."
            )

    def _outcome(self) -> Outcome:
        most = self._most
        if most is not None and self._own >= most:
            return "finished"
        if self.ran_out or self._is_full:
            return "budget"
        return "finished" if most is None else "stopped"

    def _end(self, outcome: Outcome) -> None:
        with self._lock() as database:
            log.append_statement(database, RunEnd(outcome), run=self.row)
        self._is_ended = True


def _check_used(used: int, released: int, size: int) -> None:
    if used < released:
        raise ValueError(
            f"`used` must be >= {released}, the number of rounds that released "
            f"something. Received: used={used!r}."
        )
    if used > size:
        raise ValueError(
            f"`used` must be <= {size}, the number of rounds that were "
            f"reserved. Received: used={used!r}."
        )
