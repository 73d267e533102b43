"""The rows of a ledger at one moment, and what they amount to."""

import functools
from typing import NamedTuple, cast

from keras_dp.ledger import chain
from keras_dp.ledger.audits import Commitment, Verdict
from keras_dp.ledger.charges import Balance
from keras_dp.ledger.codec import round_from_text
from keras_dp.ledger.rows import KINDS_OF_ROUNDS, Row, counted
from keras_dp.ledger.runs import RunRecord, merged, runs_of
from keras_dp.ledger.statements import (
    Account,
    CountedRound,
    Seal,
    account_from_text,
    commitment_from_text,
    statement_from_text,
    verdict_from_text,
)


class AccountRecord(NamedTuple):
    """An account as it stands in the ledger.

    Attributes:
        number: The row that opened it.
        account: Its name, capacities and terms.
        balance: Its capacity, and the amount it has spent.
        opened: Seconds since 1970 (UTC).
    """

    number: int
    account: Account
    balance: Balance
    opened: int


class SealRecord(NamedTuple):
    """A seal as it stands in the ledger.

    Attributes:
        number: Its row. No row before it is changed any more.
        hash: The hash over that row and all before it.
        time: Seconds since 1970 (UTC).
        note: The text that was written with it.
    """

    number: int
    hash: str
    time: int
    note: str


class CommitmentRecord(NamedTuple):
    """A commitment to canaries as it stands in the ledger.

    Attributes:
        number: Its row.
        time: Seconds since 1970 (UTC).
        commitment: The hash that was written.
    """

    number: int
    time: int
    commitment: Commitment


class VerdictRecord(NamedTuple):
    """A verdict as it stands in the ledger.

    Attributes:
        number: Its row.
        time: Seconds since 1970 (UTC).
        verdict: The result that was written.
    """

    number: int
    time: int
    verdict: Verdict


class Verification(NamedTuple):
    """The size and the head of a ledger that was verified.

    Attributes:
        rows: Rows of the log.
        rounds: Rounds, reserved ones included.
        head: Hash over all rows. Kept elsewhere, it proves later that the
            ledger is still the same; it changes with every append.
    """

    rows: int
    rounds: int
    head: str


class Contents:
    """All rows between two commits.

    Attributes:
        meta: The table of this name. Its head is a hash over the rows, so that
            equal tables belong to equal rows.
        is_verified: Whether `verify` was called, and raised nothing.
    """

    def __init__(self, rows: list[Row], meta: dict[str, str]) -> None:
        """Takes them as they were read, in one transaction."""
        self._rows, self.meta = rows, meta
        self.is_verified = False

    def verify(self) -> None:
        """Checks that every row is as it was written, and can be read.

        Raises:
            LedgerIntegrityError: A row was edited, added or removed.
            LedgerFormatError: A row says what this version cannot read.
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
        """The size and the head, as they stand in `meta`."""
        rows, rounds, head = (
            self.meta[key] for key in ("rows", "total", "head")
        )
        return Verification(int(rows), int(rounds), head)

    @property
    def total(self) -> int:
        """The number of rounds, reserved ones included."""
        return self._amounts.total

    @property
    def unsettled(self) -> int:
        """Rounds that are reserved and not settled."""
        return self._amounts.unsettled

    @property
    def rounds(self) -> tuple[CountedRound, ...]:
        """All rounds in order, equal neighbours counted together."""
        return self._amounts.rounds

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """All runs in the order of their start."""
        return self._amounts.runs

    @functools.cached_property
    def _amounts(self) -> "_Amounts":
        """The amounts of all rows; lets go of the rows, which may be many."""
        amounts = counted(self._rows)
        found = _Amounts(
            total=sum(part.count for part in amounts),
            unsettled=sum(part.unsettled for part in amounts),
            rounds=merged((part.body, part.count) for part in amounts),
            runs=runs_of(self._rows),
        )
        self._rows = []
        return found


class _Amounts(NamedTuple):
    """The amounts of all rows; see the properties of `Contents`."""

    total: int
    unsettled: int
    rounds: tuple[CountedRound, ...]
    runs: tuple[RunRecord, ...]


def seal_records(rows: list[Row]) -> tuple[SealRecord, ...]:
    """Returns the seals of rows that hold seals."""
    found = []
    for row in rows:
        seal = cast(Seal, statement_from_text(row.kind, row.body))
        found.append(SealRecord(row.seq, row.hash, row.time, seal.note))
    return tuple(found)


def commitment_records(rows: list[Row]) -> tuple[CommitmentRecord, ...]:
    """Returns the commitments of rows that hold commitments."""
    return tuple(
        CommitmentRecord(row.seq, row.time, commitment_from_text(row.body))
        for row in rows
    )


def verdict_records(rows: list[Row]) -> tuple[VerdictRecord, ...]:
    """Returns the verdicts of rows that hold verdicts."""
    return tuple(
        VerdictRecord(row.seq, row.time, verdict_from_text(row.body))
        for row in rows
    )


def account_records(
    rows: list[Row], balances: dict[int, Balance]
) -> tuple[AccountRecord, ...]:
    """Returns the accounts of rows that open them."""
    return tuple(
        AccountRecord(
            row.seq, account_from_text(row.body), balances[row.seq], row.time
        )
        for row in rows
    )
