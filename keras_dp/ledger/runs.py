"""Runs: the rounds of one training, trial or statistic, and who began it."""

import dataclasses
from collections.abc import Iterable
from typing import Literal, Self, cast

from keras_dp import _check
from keras_dp.ledger import log
from keras_dp.ledger.charges import Charge
from keras_dp.ledger.codec import round_from_text, text_from_round
from keras_dp.ledger.events import Round, SamplingEvent, SumQueryEvent
from keras_dp.ledger.reservation import Reservation, Transaction
from keras_dp.ledger.rows import (
    KINDS_OF_ROUNDS,
    CountedBody,
    Row,
    counted,
)
from keras_dp.ledger.statements import (
    KINDS_WITHOUT_RUN,
    CountedRound,
    Outcome,
    Plan,
    RunEnd,
    RunStart,
    Statement,
    statement_from_text,
)

State = Literal["planned", "running", "finished", "died", "unknown"]


class Run:
    """A run that is being recorded: where its process adds rounds.

    Made by `PrivacyLedger.start_run`. As a context, it ends with the block; an
    exception is noted as its outcome.

    Attributes:
        number: The row in which it begins, which names it for ever.
        start: The text that was written there.

    >>> from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> with ledger.start_run("ages", purpose="statistics") as run:
    ...     run.record(FullDataset(), [GaussianSum("sum", 1.0, 2.0)])
    >>> [(each.name, each.state, len(each)) for each in ledger.runs]
    [('ages', 'finished', 1)]
    """

    def __init__(
        self, transaction: Transaction, number: int, start: RunStart
    ) -> None:
        self._transaction, self.number, self.start = transaction, number, start

    def plan(self, rounds: Iterable[tuple[Round, int]]) -> None:
        """Writes the most that the run will do, before its first round.

        A plan does not limit the run. It is what makes its cost a guarantee,
        if the run keeps to it, even if it is stopped early because of what was
        seen.

        Args:
            rounds: Rounds with how often they happen at most.

        Raises:
            LedgerWriteError: The plan is not written.
        """
        self._state(
            Plan(tuple(CountedRound(each, int(n)) for each, n in rounds))
        )

    def record(
        self,
        sampling: SamplingEvent,
        queries: Iterable[SumQueryEvent],
        count: int = 1,
        *,
        seeded: bool = False,
        charge: Charge | None = None,
    ) -> None:
        """Adds rounds, as `PrivacyLedger.record` does."""
        rounds, _ = self._rounds(sampling, queries, seeded, charge)
        append_record(self._transaction, rounds, count)

    def reserve(
        self,
        sampling: SamplingEvent,
        queries: Iterable[SumQueryEvent],
        count: int = 1,
        *,
        seeded: bool = False,
        charge: Charge | None = None,
    ) -> Reservation:
        """Covers rounds before they run, as `PrivacyLedger.reserve` does."""
        rounds, round_ = self._rounds(sampling, queries, seeded, charge)
        return append_reservation(self._transaction, rounds, round_, count)

    def finish(self, outcome: Outcome = "finished") -> None:
        """Ends the run: it releases nothing more.

        Args:
            outcome: "finished" as planned; "budget" if a target or an account
                left no room; "stopped" before, perhaps because of what was
                seen; "failed" by an exception.

        Raises:
            LedgerWriteError: It has ended already, or cannot be written.
        """
        self._state(RunEnd(outcome))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.finish("finished" if kind is None else "failed")

    def __repr__(self) -> str:
        return f"<Run {self.number}, name={self.start.name!r}>"

    def _state(self, statement: Statement) -> None:
        with self._transaction() as connection:
            log.append_statement(connection, statement, run=self.number)

    def _rounds(
        self,
        sampling: SamplingEvent,
        queries: Iterable[SumQueryEvent],
        seeded: bool,
        charge: Charge | None,
    ) -> tuple[log.Rounds, Round]:
        round_ = Round(sampling, tuple(queries), seeded)
        return log.Rounds(text_from_round(round_), self.number, charge), round_


def append_record(
    transaction: Transaction, rounds: log.Rounds, count: int
) -> None:
    """Adds `count` rounds in a transaction of their own."""
    _check.integer_at_least(1, count=count)
    with transaction() as connection:
        log.append_record(connection, rounds, int(count))


def append_reservation(
    transaction: Transaction, rounds: log.Rounds, round_: Round, count: int
) -> Reservation:
    """Reserves `count` rounds in a transaction of their own."""
    _check.integer_at_least(1, count=count)
    with transaction() as connection:
        row = log.append_reservation(connection, rounds, int(count))
    return Reservation(transaction, row, rounds, round_, int(count))


@dataclasses.dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as it stands in the ledger. Accountants replay it as a ledger.

    Attributes:
        number: The row in which it begins; 0 for rounds that belong to none.
        start: Who began it, when, and what for; `None` for number 0.
        started: Seconds since 1970 (UTC); 0 for number 0.
        updated: When its last row was written, in the same unit.
        plan: The most that it said it would do; `None` without a plan.
        plan_row: The last row of the plan; 0 without a plan.
        first_row: The row of its first rounds; 0 without rounds.
        outcome: How it ended; `None` if it has not.
        rounds: All rounds in order, equal neighbours counted together;
            reserved ones are among them.
        unsettled: Rounds that are reserved and not settled.
        charges: The kinds of rounds that an account paid for, with the price
            of each.
    """

    number: int
    start: RunStart | None
    started: int
    updated: int
    plan: tuple[CountedRound, ...] | None
    plan_row: int
    first_row: int
    outcome: Outcome | None
    rounds: tuple[CountedRound, ...]
    unsettled: int
    charges: tuple[tuple[Round, Charge], ...] = ()

    @property
    def name(self) -> str:
        """The name people use; empty for rounds that belong to no run."""
        return "" if self.start is None else self.start.name

    @property
    def state(self) -> State:
        """Whether it is planned, running, finished or died.

        "unknown" means that its process may still run on another machine, or
        that the rounds belong to no run and are reserved. A process that was
        killed leaves its reserved rounds counted in full.
        """
        if self.outcome is not None:
            return "died" if self.outcome == "failed" else "finished"
        if self.start is None:
            return "unknown" if self.unsettled else "finished"
        running = self.start.author.is_running()
        if running is None:
            return "unknown"
        if not running:
            return "died"
        return "running" if self.rounds or self.plan is None else "planned"

    def __len__(self) -> int:
        """The number of rounds, reserved ones included."""
        return sum(count for _, count in self.rounds)

    def __bool__(self) -> bool:
        """True: a run without rounds is a run."""
        return True


def runs_of(rows: list[Row]) -> tuple[RunRecord, ...]:
    """Returns the runs in the order of their start, rounds without one first.

    Raises:
        LedgerFormatError: A row cannot be read.
    """
    drafts = {0: _Draft(0)}
    for row in rows:
        number = row.seq if row.kind == RunStart.kind else row.run or 0
        drafts.setdefault(number, _Draft(number)).read(row)
    for amount in counted(rows):
        drafts[amount.run or 0].add(amount)
    if not drafts[0].bodies:
        del drafts[0]
    return tuple(draft.record() for draft in drafts.values())


def merged(bodies: Iterable[tuple[str, int]]) -> tuple[CountedRound, ...]:
    """Returns rounds of their texts, equal neighbours counted together."""
    joined: list[tuple[str, int]] = []
    for body, count in bodies:
        if joined and joined[-1][0] == body:
            joined[-1] = body, joined[-1][1] + count
        else:
            joined.append((body, count))
    rounds = {body: round_from_text(body) for body, _ in joined}
    return tuple(CountedRound(rounds[body], n) for body, n in joined)


@dataclasses.dataclass(slots=True)
class _Draft:
    """A run of which some rows have been read; see `RunRecord`."""

    number: int
    start: RunStart | None = None
    started: int = 0
    updated: int = 0
    plan: tuple[CountedRound, ...] | None = None
    plan_row: int = 0
    first_row: int = 0
    outcome: Outcome | None = None
    unsettled: int = 0
    bodies: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    paid: dict[tuple[str, str], None] = dataclasses.field(default_factory=dict)

    def read(self, row: Row) -> None:
        """Takes what the row says, but for the number of its rounds."""
        if row.kind in KINDS_WITHOUT_RUN and row.kind != RunStart.kind:
            return
        self.updated = row.time
        if row.kind in KINDS_OF_ROUNDS:
            self.first_row = self.first_row or row.seq
            return
        statement = statement_from_text(row.kind, row.body)
        if isinstance(statement, RunStart):
            self.start, self.started = statement, row.time
        elif isinstance(statement, Plan):
            # A run that goes on may plan more.
            self.plan = (*(self.plan or ()), *statement.rounds)
            self.plan_row = row.seq
        elif isinstance(statement, RunEnd):
            self.outcome = cast(Outcome, statement.outcome)

    def add(self, amount: CountedBody) -> None:
        """Adds rounds that count."""
        self.bodies.append((amount.body, amount.count))
        self.unsettled += amount.unsettled
        if amount.charge is not None:
            self.paid[amount.body, amount.charge] = None

    def record(self) -> RunRecord:
        return RunRecord(
            number=self.number,
            start=self.start,
            started=self.started,
            updated=self.updated,
            plan=self.plan,
            plan_row=self.plan_row,
            first_row=self.first_row,
            outcome=self.outcome,
            rounds=merged(self.bodies),
            unsettled=self.unsettled,
            charges=tuple(
                (round_from_text(body), Charge.from_text(charge))
                for body, charge in self.paid
            ),
        )
