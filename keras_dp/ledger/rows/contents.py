"""The rows of a ledger at one moment: the rounds, runs and accounts in them."""

import dataclasses
from collections.abc import Iterable
from typing import Literal, NamedTuple, cast

from keras_dp.ledger.events.rounds import CountedRound, Round
from keras_dp.ledger.rows import chain, log
from keras_dp.ledger.rows.charges import Balance, Charge, balances_from_text
from keras_dp.ledger.rows.codec import round_from_text
from keras_dp.ledger.rows.header import Header
from keras_dp.ledger.rows.row import KINDS_OF_ROUNDS, CountedBody, Row, counted
from keras_dp.ledger.rows.statements import (
    KINDS_WITHOUT_RUN,
    Account,
    Outcome,
    RunEnd,
    RunPlan,
    RunStart,
    Seal,
    statement_from_text,
    statement_of,
)

State = Literal["planned", "running", "finished", "died", "unknown"]


@dataclasses.dataclass(frozen=True, slots=True)
class RunRecord:
    """A run that a ledger holds; an accountant can replay it like a ledger.

    Attributes:
        number: 1 for the first run of the ledger, and so on; 0 for the rounds
            that belong to no run.
        row: The row in which the run began; 0 for number 0.
        start: The name and the purpose, and the process that began or continued
            the run last; `None` for number 0.
        started: When it began, in seconds since 1970 (UTC); 0 for number 0.
        updated: When its last row was written, in seconds since 1970 (UTC).
        plan: The most that the run would do; `None` without a plan.
        plan_row: The last row of the plan; 0 without a plan.
        delta: The delta of the plan; `None` if it has none.
        first_row: The row of the first rounds; 0 without rounds.
        outcome: How the run ended; `None` if it has not ended.
        rounds: All rounds in order; equal rounds in a row are counted together,
            and reserved rounds are included.
        unsettled: The number of rounds that are reserved and not settled.
        charges: Pairs of a kind of round and its charge, for the rounds that an
            account paid for.
        rows_per_unit: As the header of the ledger says.
    """

    number: int
    row: int
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
    delta: float | None = None
    rows_per_unit: int = 1

    @property
    def name(self) -> str:
        """The name of the run; empty for the rounds that belong to no run."""
        return "" if self.start is None else self.start.name

    @property
    def state(self) -> State:
        """The state: "planned", "running", "finished", "died" or "unknown".

        "died" means that an exception ended the run, or that the process is
        gone and never ended it.
        "unknown" has two reasons. The process of the run was started on another
        machine, where it may still run; or the rounds belong to no run, and
        some of them are reserved. The reserved rounds of a process that was
        killed stay counted in full.
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

    @property
    def rest(self) -> CountedRound | None:
        """The rounds that an interrupted run still has of its plan.

        `None` if there are none, or if the run is in progress or ended as
        planned. `None` also if its plan is of several kinds of rounds, or it
        did not keep to it: then nobody can say what is left.
        """
        if (
            self.plan is None
            or len(self.plan) != 1
            or 0 < self.first_row < self.plan_row
            or self.outcome not in (None, "stopped", "failed")
            or self.state in ("running", "planned")
        ):
            return None
        ((planned, count),) = self.plan
        left = count - len(self)
        if left <= 0 or any(each != planned for each, _ in self.rounds):
            return None
        return CountedRound(planned, left)

    def __len__(self) -> int:
        """The number of rounds, including reserved ones."""
        return sum(count for _, count in self.rounds)

    def __bool__(self) -> bool:
        """True, also for a run without rounds."""
        return True


class AccountRecord(NamedTuple):
    """An account of a ledger, with its balance.

    Attributes:
        number: The number of the row that opened the account.
        account: The name, capacities and terms of the account.
        balance: The capacities, and the amounts that were spent.
        opened: When it was opened, in seconds since 1970 (UTC).
    """

    number: int
    account: Account
    balance: Balance
    opened: int

    @classmethod
    def of(cls, row: Row, balances: dict[int, Balance]) -> "AccountRecord":
        """Returns the account that was opened in a row."""
        account = statement_of(Account, row.body)
        return cls(row.seq, account, balances[row.seq], row.time)


class SealRecord(NamedTuple):
    """A seal of a ledger, with its row.

    Attributes:
        number: The number of its row.
        hash: The hash over this row and all rows before it.
        time: When it was written, in seconds since 1970 (UTC).
        note: The text that was written with it.
    """

    number: int
    hash: str
    time: int
    note: str

    @classmethod
    def of(cls, row: Row) -> "SealRecord":
        """Returns the seal in a row."""
        note = statement_of(Seal, row.body).note
        return cls(row.seq, row.hash, row.time, note)


class Verification(NamedTuple):
    """The size and the head of a ledger that was verified.

    Attributes:
        rows: The number of rows.
        rounds: The number of rounds, including reserved ones.
        head: The hash over all rows, which changes with every new row. A copy
            that you keep elsewhere shows later whether the ledger is the same.
    """

    rows: int
    rounds: int
    head: str


class Contents(NamedTuple):
    """The rounds and runs of a ledger as they were between two commits.

    The head in the table `meta` is a hash over the rows, so that equal tables
    belong to equal rows. For the `unpaid` rounds no account paid.
    """

    meta: dict[str, str]
    rounds: tuple[CountedRound, ...]
    unpaid: tuple[CountedRound, ...]
    unsettled: int
    runs: tuple[RunRecord, ...]
    accounts: tuple[AccountRecord, ...]

    @classmethod
    def of(cls, rows: list[Row], meta: dict[str, str]) -> "Contents":
        """Returns what rows hold, read in one transaction with `meta`."""
        amounts = counted(rows)
        unpaid = [part for part in amounts if part.charge is None]
        rounds = merged((part.body, part.count) for part in amounts)
        balances = balances_from_text(meta["balances"])
        return cls(
            meta,
            rounds,
            rounds
            if len(unpaid) == len(amounts)
            else merged((part.body, part.count) for part in unpaid),
            sum(part.unsettled for part in amounts),
            runs_of(rows, Header.from_text(meta["header"]).rows_per_unit),
            tuple(
                AccountRecord.of(row, balances)
                for row in rows
                if row.seq in balances
            ),
        )


def verified(rows: list[Row], meta: dict[str, str]) -> Verification:
    """Checks the hash of every row, and reads every row.

    The rows and the table `meta` were read in one transaction.
    """
    chain.verify(rows, meta)
    for row in rows:
        if row.kind in KINDS_OF_ROUNDS:
            round_from_text(row.body)
        else:
            statement_from_text(row.kind, row.body)
    return Verification(int(meta["rows"]), int(meta["total"]), meta["head"])


def accounts_of(database: log.Database) -> tuple[AccountRecord, ...]:
    """Returns all accounts of a ledger in the order of their opening."""
    balances = balances_from_text(log.meta(database)["balances"])
    rows = (log.row(database, number) for number in sorted(balances))
    return tuple(AccountRecord.of(row, balances) for row in rows)


def runs_of(rows: list[Row], rows_per_unit: int = 1) -> tuple[RunRecord, ...]:
    """Returns the runs in the order of their start, after run 0."""
    rows_of: dict[int, list[Row]] = {0: []}
    for row in rows:
        began = row.run or (row.seq if row.kind == RunStart.kind else 0)
        rows_of.setdefault(began, []).append(row)
    amounts: dict[int, list[CountedBody]] = {began: [] for began in rows_of}
    for amount in counted(rows):
        amounts[amount.run or 0].append(amount)
    return tuple(
        _record(number, began, own, amounts[began], rows_per_unit)
        for number, (began, own) in enumerate(rows_of.items())
        if began or amounts[began]
    )


def merged(bodies: Iterable[tuple[str, int]]) -> tuple[CountedRound, ...]:
    """Returns the rounds of some texts; equal ones in a row become one."""
    joined: list[tuple[str, int]] = []
    for body, count in bodies:
        if joined and joined[-1][0] == body:
            joined[-1] = body, joined[-1][1] + count
        else:
            joined.append((body, count))
    rounds = {body: round_from_text(body) for body, _ in joined}
    return tuple(CountedRound(rounds[body], n) for body, n in joined)


def _record(
    number: int,
    began: int,
    rows: list[Row],
    amounts: list[CountedBody],
    rows_per_unit: int,
) -> RunRecord:
    """Returns the run that began in a row; 0 for the rounds of no run."""
    start, plan, delta, outcome = None, None, None, None
    started = updated = plan_row = first_row = 0
    for row in rows:
        if row.kind in KINDS_WITHOUT_RUN and row.kind != RunStart.kind:
            continue
        updated = row.time
        if row.kind in KINDS_OF_ROUNDS:
            first_row = first_row or row.seq
            continue
        statement = statement_from_text(row.kind, row.body)
        if isinstance(statement, RunStart):
            start, outcome, started = statement, None, started or row.time
        elif isinstance(statement, RunPlan):
            # A run that goes on may plan more.
            plan = (*(plan or ()), *statement.rounds)
            plan_row, delta = row.seq, statement.delta
        elif isinstance(statement, RunEnd):
            outcome = cast(Outcome, statement.outcome)
    paid = {(each.body, each.charge): None for each in amounts if each.charge}
    return RunRecord(
        number=number,
        row=began,
        start=start,
        started=started,
        updated=updated,
        plan=plan,
        plan_row=plan_row,
        first_row=first_row,
        outcome=outcome,
        rounds=merged((each.body, each.count) for each in amounts),
        unsettled=sum(each.unsettled for each in amounts),
        charges=tuple(
            (round_from_text(body), Charge.from_text(charge))
            for body, charge in paid
        ),
        delta=delta,
        rows_per_unit=rows_per_unit,
    )
