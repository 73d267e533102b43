"""The log of a ledger in its database: appended, folded, settled and closed.

The functions run inside a transaction, which `begin` starts and `finish` ends.
The log stays short. A record that repeats the one before, in the same run, is
folded into it, and a reservation that is still the last row is replaced by what
was used when it is settled. It needs a `settle` row only if another row was
appended since.
"""

import time
from typing import Any, NamedTuple, Protocol

from keras_dp.errors import LedgerWriteError
from keras_dp.ledger import chain
from keras_dp.ledger.charges import (
    Charge,
    balances_from_text,
    opened,
    text_from_balances,
)
from keras_dp.ledger.rows import LARGEST_COUNT, Row
from keras_dp.ledger.statements import (
    Account,
    RunEnd,
    Statement,
    text_from_statement,
)

_SELECT = (
    "SELECT seq, kind, run, bodies.body, count, target, charge, time, hash "
    "FROM log LEFT JOIN bodies ON bodies.id = log.body"
)


class Database(Protocol):
    """A connection to a database; `sqlite3.Connection` is one."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Any:
        """Runs a statement with `?` for each parameter; returns a cursor."""


class Rounds(NamedTuple):
    """The content of a row of rounds, without their number.

    Attributes:
        body: The round as text.
        run: The row that started the run, if any.
        charge: The cost of each round to an account, if any.
    """

    body: str
    run: int | None = None
    charge: Charge | None = None


def rows(connection: Database, kind: str | None = None) -> list[Row]:
    """Returns all rows, or those of one kind, in order."""
    if kind is None:
        found = connection.execute(f"{_SELECT} ORDER BY seq")
    else:
        found = connection.execute(
            f"{_SELECT} WHERE kind = ? ORDER BY seq", [kind]
        )
    return [Row(*values) for values in found]


def row(connection: Database, seq: int) -> Row:
    """Returns one row.

    Raises:
        LedgerIntegrityError: It is missing.
    """
    values = connection.execute(f"{_SELECT} WHERE seq = ?", [seq]).fetchone()
    if values is None:
        raise chain.contradiction(seq, "it is missing")
    return Row(*values)


def meta(connection: Database) -> dict[str, str]:
    """Returns what stands beside the rows; see `ledger.chain`."""
    return dict(connection.execute("SELECT key, value FROM meta"))


def begin(connection: Database) -> None:
    """Checks the end of the log, on which the transaction builds.

    Raises:
        LedgerIntegrityError: The last row or `meta` is not as it was written.
    """
    chain.check_end(meta(connection), _last(connection, 1), _last(connection))


def finish(connection: Database, writer: str) -> None:
    """Writes the head over what the transaction did.

    Args:
        connection: Its transaction is about to be committed.
        writer: Stands for the name under which the file is open; see
            `ledger.journal`.
    """
    last = _last(connection)
    _set_meta(connection, "writer", writer)
    _set_meta(connection, "rows", str(0 if last is None else last.seq))
    _set_meta(connection, "head", chain.head(meta(connection), last))


def append_record(connection: Database, rounds: Rounds, count: int) -> None:
    """Adds `count` rounds.

    Raises:
        BudgetExceededError: Their account has no room for them.
        LedgerWriteError: Their run has ended, or no account pays for them.
    """
    _check_open(connection, rounds.run)
    _charge(connection, rounds.charge, count)
    _add_to_total(connection, count)
    _fold_record(connection, rounds, count)


def append_reservation(connection: Database, rounds: Rounds, count: int) -> int:
    """Reserves `count` rounds, and returns the row's number.

    Raises:
        BudgetExceededError: Their account has no room for them.
        LedgerWriteError: Their run has ended, or no account pays for them.
    """
    _check_open(connection, rounds.run)
    _charge(connection, rounds.charge, count)
    _add_to_total(connection, count)
    return _append(connection, "reserve", rounds, count)


def append_statement(
    connection: Database,
    statement: Statement,
    *,
    run: int | None = None,
    charge: Charge | None = None,
) -> int:
    """Adds a statement, and returns the row's number.

    Args:
        connection: In a transaction.
        statement: To be added.
        run: The run of which it speaks, if any.
        charge: The cost of an account to the one of which it is a share.

    Raises:
        BudgetExceededError: The other account has no room for a new one.
        LedgerWriteError: The run has ended.
    """
    _check_open(connection, run)
    if charge is not None:
        _charge(connection, charge, 1)
    rounds = Rounds(text_from_statement(statement), run, charge)
    seq = _append(connection, statement.kind, rounds, 0)
    if isinstance(statement, Account):
        found = balances_from_text(meta(connection)["balances"])
        found[seq] = opened(statement.capacities)
        _set_meta(connection, "balances", text_from_balances(found))
    return seq


def copy(connection: Database, rows: list[Row], meta: dict[str, str]) -> None:
    """Writes rows of another log, hashes included, into an empty one."""
    for row in rows:
        _insert(connection, row)
    for key, value in meta.items():
        _set_meta(connection, key, value)


def settle(
    connection: Database, seq: int, rounds: Rounds, count: int, used: int
) -> None:
    """Replaces the `count` rounds that row `seq` reserved by those used.

    Raises:
        LedgerIntegrityError: The row is not that reservation, or is settled.
    """
    last = _last(connection)
    found = row(connection, seq)
    charge = None if rounds.charge is None else rounds.charge.as_text()
    if last is None or (
        (found.kind, found.run, found.body, found.count, found.charge)
        != ("reserve", rounds.run, rounds.body, count, charge)
    ):
        raise chain.contradiction(seq, "it is not the reservation it was")
    _add_to_total(connection, used - count)
    if rounds.charge is not None:
        _charge(connection, rounds.charge, used - count)
    if seq == last.seq:
        _delete(connection, seq)
        if used:
            _fold_record(connection, rounds, used)
        return
    if connection.execute(
        "SELECT 1 FROM log WHERE seq > ? AND target = ?", [seq, seq]
    ).fetchone():
        raise chain.contradiction(seq, "it is settled already")
    _append(connection, "settle", rounds, used, target=seq)


def _append(
    connection: Database,
    kind: str,
    rounds: Rounds,
    count: int,
    target: int | None = None,
) -> int:
    last = _last(connection)
    seq = 1 if last is None else last.seq + 1
    charge = None if rounds.charge is None else rounds.charge.as_text()
    now = int(time.time())
    digest = chain.hash_of(
        chain.hash_before(meta(connection), last),
        *(seq, kind, rounds.run, rounds.body, count, target, charge, now),
    )
    _insert(
        connection,
        Row(
            seq,
            kind,
            rounds.run,
            rounds.body,
            count,
            target,
            charge,
            now,
            digest,
        ),
    )
    return seq


def _insert(connection: Database, row: Row) -> None:
    connection.execute(
        "INSERT INTO bodies (body) VALUES (?) ON CONFLICT DO NOTHING",
        [row.body],
    )
    (body,) = connection.execute(
        "SELECT id FROM bodies WHERE body = ?", [row.body]
    ).fetchone()
    connection.execute(
        "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        list(row._replace(body=body)),
    )


def _fold_record(connection: Database, rounds: Rounds, count: int) -> None:
    last = _last(connection)
    charge = None if rounds.charge is None else rounds.charge.as_text()
    if last is not None and (
        (last.kind, last.run, last.body, last.charge)
        == ("record", rounds.run, rounds.body, charge)
    ):
        _delete(connection, last.seq)
        count += last.count
    _append(connection, "record", rounds, count)


def _delete(connection: Database, seq: int) -> None:
    connection.execute("DELETE FROM log WHERE seq = ?", [seq])


def _check_open(connection: Database, run: int | None) -> None:
    """Raises if a run has ended, perhaps by a call in another process."""
    if run is None:
        return
    # The kind stands in the text: a parameter would not use the index `ends`.
    if connection.execute(
        f"SELECT 1 FROM log WHERE run = ? AND kind = '{RunEnd.kind}'", [run]
    ).fetchone():
        raise LedgerWriteError(
            f"The run in row {run} has ended. Nothing may be released in it. "
            "Start another run with `ledger.start_run`."
        )


def _charge(connection: Database, charge: Charge | None, count: int) -> None:
    """Takes `count` rounds from their account, or gives back if negative."""
    balances = balances_from_text(meta(connection)["balances"])
    if charge is None:
        if balances:
            raise LedgerWriteError(
                "The ledger has accounts, and one of them must pay for every "
                "round. Received: rounds without an account. Nothing may be "
                "released. A training that began before an account was opened "
                "must be started again: it finds the only account, or takes "
                "one of several by `run=RunDetails(account=...)`."
            )
        return
    balances[charge.account] = balances[charge.account].after(charge, count)
    _set_meta(connection, "balances", text_from_balances(balances))


def _last(connection: Database, skip: int = 0) -> Row | None:
    """Returns the last row, or one of those before it."""
    values = connection.execute(
        f"{_SELECT} ORDER BY seq DESC LIMIT 1 OFFSET ?", [skip]
    ).fetchone()
    return None if values is None else Row(*values)


def _add_to_total(connection: Database, count: int) -> None:
    before = int(meta(connection)["total"])
    if before + count > LARGEST_COUNT:
        raise OverflowError(
            "`count` must fit 64 bits together with all rounds of the ledger. "
            f"Received: count={count!r}, with {before} before it."
        )
    _set_meta(connection, "total", str(before + count))


def _set_meta(connection: Database, key: str, value: str) -> None:
    connection.execute("UPDATE meta SET value = ? WHERE key = ?", [value, key])
