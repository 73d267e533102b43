"""The rows of a ledger at one moment, and the rounds and runs in them."""

from typing import Any, Generic, NamedTuple, TypeVar

from keras_dp.ledger.rows import chain, log
from keras_dp.ledger.rows.charges import Balance, balances_from_text
from keras_dp.ledger.rows.codec import round_from_text
from keras_dp.ledger.rows.header import Header
from keras_dp.ledger.rows.row import KINDS_OF_ROUNDS, Row, counted
from keras_dp.ledger.rows.runs import RunRecord, merged, runs_of
from keras_dp.ledger.rows.statements import (
    Account,
    CountedRound,
    statement_from_text,
    statement_of,
)

_Statement = TypeVar("_Statement")


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


class Stated(NamedTuple, Generic[_Statement]):
    """A statement of a ledger, such as a seal, with its row.

    Attributes:
        number: The number of its row.
        hash: The hash over this row and all rows before it.
        time: When it was written, in seconds since 1970 (UTC).
        statement: The statement, as it was written.
    """

    number: int
    hash: str
    time: int
    statement: _Statement


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

    Attributes:
        meta: The table `meta`. Its head is a hash over the rows, so that equal
            tables belong to equal rows.
        rounds: All rounds in order; equal rounds in a row are counted together.
        unpaid: The rounds for which no account paid.
        unsettled: The number of rounds that are reserved and not settled.
        runs: All runs in the order of their start.
        accounts: All accounts in the order of their opening.
    """

    meta: dict[str, str]
    rounds: tuple[CountedRound, ...]
    unpaid: tuple[CountedRound, ...]
    unsettled: int
    runs: tuple[RunRecord, ...]
    accounts: tuple[AccountRecord, ...]

    @classmethod
    def of(cls, rows: list[Row], meta: dict[str, str]) -> "Contents":
        """Returns what rows hold.

        Args:
            rows: All rows, read in one transaction with the table.
            meta: The table `meta`.

        Raises:
            LedgerFormatError: This version cannot read a row.
        """
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
            account_records(
                [row for row in rows if row.seq in balances], balances
            ),
        )


def verified(rows: list[Row], meta: dict[str, str]) -> Verification:
    """Checks the hash of every row, and reads every row.

    Args:
        rows: All rows, read in one transaction with the table.
        meta: The table `meta`.

    Raises:
        LedgerIntegrityError: A row was edited, added or removed.
        LedgerFormatError: This version cannot read a row.
    """
    chain.verify(rows, meta)
    for row in rows:
        if row.kind in KINDS_OF_ROUNDS:
            round_from_text(row.body)
        else:
            statement_from_text(row.kind, row.body)
    return Verification(int(meta["rows"]), int(meta["total"]), meta["head"])


def stated(row: Row) -> Stated[Any]:
    """Returns the statement of a row."""
    statement = statement_from_text(row.kind, row.body)
    return Stated(row.seq, row.hash, row.time, statement)


def accounts_of(database: log.Database) -> tuple[AccountRecord, ...]:
    """Returns all accounts of a ledger in the order of their opening."""
    balances = balances_from_text(log.meta(database)["balances"])
    rows = [log.row(database, number) for number in sorted(balances)]
    return account_records(rows, balances)


def account_records(
    rows: list[Row], balances: dict[int, Balance]
) -> tuple[AccountRecord, ...]:
    """Returns the accounts in some rows, which must open accounts."""
    return tuple(
        AccountRecord(
            row.seq,
            statement_of(Account, row.body),
            balances[row.seq],
            row.time,
        )
        for row in rows
    )
