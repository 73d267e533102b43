"""The rows of a ledger at one moment, and the rounds and runs in them."""

import functools
from typing import NamedTuple, cast

from keras_dp.ledger.rows import chain
from keras_dp.ledger.rows.audits import Commitment, Verdict
from keras_dp.ledger.rows.charges import Balance
from keras_dp.ledger.rows.codec import round_from_text
from keras_dp.ledger.rows.header import Header
from keras_dp.ledger.rows.row import KINDS_OF_ROUNDS, Row, counted
from keras_dp.ledger.rows.runs import RunRecord, merged, runs_of
from keras_dp.ledger.rows.statements import (
    Account,
    CountedRound,
    Seal,
    account_from_text,
    commitment_from_text,
    statement_from_text,
    verdict_from_text,
)


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


class SealRecord(NamedTuple):
    """A seal of a ledger: no earlier row changes any more.

    Attributes:
        number: The number of its row.
        hash: The hash over this row and all rows before it.
        time: When it was written, in seconds since 1970 (UTC).
        note: The text that was written with the seal.
    """

    number: int
    hash: str
    time: int
    note: str


class CommitmentRecord(NamedTuple):
    """A commitment to the canaries of an audit, as a row of a ledger.

    Attributes:
        number: The number of its row.
        time: When it was written, in seconds since 1970 (UTC).
        commitment: The hash that was written, with its note.
    """

    number: int
    time: int
    commitment: Commitment


class VerdictRecord(NamedTuple):
    """The verdict of an audit, as a row of a ledger.

    Attributes:
        number: The number of its row.
        time: When it was written, in seconds since 1970 (UTC).
        verdict: The result that was written.
    """

    number: int
    time: int
    verdict: Verdict


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


class Contents:
    """The rows of a ledger as they were between two commits.

    Attributes:
        meta: The table `meta`. Its head is a hash over the rows, so that equal
            tables belong to equal rows.
        is_verified: Whether `verify` was called, and raised nothing.
    """

    def __init__(self, rows: list[Row], meta: dict[str, str]) -> None:
        """Takes the rows and the table, read in one transaction."""
        self._rows, self.meta = rows, meta
        self.is_verified = False

    def verify(self) -> None:
        """Checks the hash of every row, and reads every row.

        Call it first: `rounds`, `runs` and the totals discard the rows.

        Raises:
            LedgerIntegrityError: A row was edited, added or removed.
            LedgerFormatError: This version cannot read a row.
        """
        chain.verify(self._rows, self.meta)
        for row in self._rows:
            if row.kind in KINDS_OF_ROUNDS:
                round_from_text(row.body)
            else:
                statement_from_text(row.kind, row.body)
        self.is_verified = True

    @property
    def verification(self) -> Verification:
        """The size and the head, read from the table `meta`."""
        rows, rounds, head = (
            self.meta[key] for key in ("rows", "total", "head")
        )
        return Verification(int(rows), int(rounds), head)

    @property
    def total(self) -> int:
        """The number of rounds, including reserved ones."""
        return self._amounts.total

    @property
    def unsettled(self) -> int:
        """The number of rounds that are reserved and not settled."""
        return self._amounts.unsettled

    @property
    def rounds(self) -> tuple[CountedRound, ...]:
        """All rounds in order; equal rounds in a row are counted together."""
        return self._amounts.rounds

    @property
    def unpaid(self) -> tuple[CountedRound, ...]:
        """The rounds for which no account paid."""
        return self._amounts.unpaid

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """All runs in the order of their start."""
        return self._amounts.runs

    @functools.cached_property
    def _amounts(self) -> "_Amounts":
        """The rounds and runs of all rows; discards the rows to save memory."""
        header = Header.from_text(self.meta["header"])
        amounts = counted(self._rows)
        unpaid = [part for part in amounts if part.charge is None]
        rounds = merged((part.body, part.count) for part in amounts)
        found = _Amounts(
            total=sum(part.count for part in amounts),
            unsettled=sum(part.unsettled for part in amounts),
            rounds=rounds,
            unpaid=rounds
            if len(unpaid) == len(amounts)
            else merged((part.body, part.count) for part in unpaid),
            runs=runs_of(self._rows, header.rows_per_unit),
        )
        self._rows = []
        return found


class _Amounts(NamedTuple):
    """The rounds and runs of all rows; see the properties of `Contents`."""

    total: int
    unsettled: int
    rounds: tuple[CountedRound, ...]
    unpaid: tuple[CountedRound, ...]
    runs: tuple[RunRecord, ...]


def seal_records(rows: list[Row]) -> tuple[SealRecord, ...]:
    """Returns the seals in some rows, which must hold seals."""
    found = []
    for row in rows:
        seal = cast(Seal, statement_from_text(row.kind, row.body))
        found.append(SealRecord(row.seq, row.hash, row.time, seal.note))
    return tuple(found)


def commitment_records(rows: list[Row]) -> tuple[CommitmentRecord, ...]:
    """Returns the commitments in some rows, which must hold commitments."""
    return tuple(
        CommitmentRecord(row.seq, row.time, commitment_from_text(row.body))
        for row in rows
    )


def verdict_records(rows: list[Row]) -> tuple[VerdictRecord, ...]:
    """Returns the verdicts in some rows, which must hold verdicts."""
    return tuple(
        VerdictRecord(row.seq, row.time, verdict_from_text(row.body))
        for row in rows
    )


def account_records(
    rows: list[Row], balances: dict[int, Balance]
) -> tuple[AccountRecord, ...]:
    """Returns the accounts in some rows, which must open accounts."""
    return tuple(
        AccountRecord(
            row.seq, account_from_text(row.body), balances[row.seq], row.time
        )
        for row in rows
    )
