"""The log of a ledger in its database: appended, folded, settled and closed.

The functions run inside a transaction, which `begin` starts and `finish` ends.
Two rules keep the log short. A `record` row that repeats the last row, in the
same run, is *folded* into it: one row with the sum of both counts replaces the
two. A reservation that is still the last row when it is settled is replaced by
a `record` row of the rounds that ran. A `settle` row is appended only if other
rows were appended since the reservation.
"""

import time
from typing import Any, NamedTuple, Protocol

from keras_dp.errors import LedgerWriteError
from keras_dp.ledger.rows import chain
from keras_dp.ledger.rows.charges import (
    Charge,
    balances_from_text,
    opened,
    text_from_balances,
)
from keras_dp.ledger.rows.mechanism_rows import (
    check_holder,
    check_next_rows,
    mechanism_ids,
)
from keras_dp.ledger.rows.row import (
    KINDS_OF_ROUNDS,
    LARGEST_COUNT,
    Row,
    counted,
)
from keras_dp.ledger.rows.statements import (
    Account,
    RunEnd,
    RunStart,
    Statement,
    statement_of,
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
    """The content of a row about rounds, except how many rounds they are.

    A run is named by the row in which it began. The charge is the price that an
    account pays for each round.
    """

    body: str
    run: int | None = None
    charge: Charge | None = None

    @property
    def price(self) -> str | None:
        """The charge as text, as the row holds it."""
        return None if self.charge is None else self.charge.as_text()


def rows(connection: Database, kind: str | None = None) -> list[Row]:
    """Returns all rows, or those of one kind, in order."""
    if kind is None:
        found = connection.execute(f"{_SELECT} ORDER BY seq")
    else:
        found = connection.execute(
            f"{_SELECT} WHERE kind = ? ORDER BY seq", [kind]
        )
    return [Row(*values) for values in found]


def count_of(connection: Database, kind: str, last: int) -> int:
    """Returns how many rows of one kind there are, up to the row `last`."""
    found = connection.execute(
        "SELECT COUNT(*) FROM log WHERE kind = ? AND run IS NULL AND seq <= ?",
        [kind, last],
    )
    return int(found.fetchone()[0])


def row(connection: Database, seq: int) -> Row:
    """Returns one row."""
    values = connection.execute(f"{_SELECT} WHERE seq = ?", [seq]).fetchone()
    if values is None:
        raise chain.contradiction(seq, "it is missing")
    return Row(*values)


def meta(connection: Database) -> dict[str, str]:
    """Returns the table `meta`: totals, balances, head; see `chain.py`."""
    return dict(connection.execute("SELECT key, value FROM meta"))


def begin(connection: Database) -> None:
    """Checks the end of the log, to which the transaction appends."""
    chain.check_end(meta(connection), _last(connection, 1), _last(connection))


def finish(connection: Database, writer: str) -> None:
    """Writes the new head, as the last step before the commit.

    The writer is a hash of the name under which the file is open; see
    `places.storage`.
    """
    last = _last(connection)
    _set_meta(connection, "writer", writer)
    _set_meta(connection, "rows", str(0 if last is None else last.seq))
    _set_meta(connection, "head", chain.head(meta(connection), last))


def append_record(connection: Database, rounds: Rounds, count: int) -> None:
    """Adds `count` rounds that ran.

    It refuses them if the run has ended; if the account has no room, or the
    ledger has accounts and none pays; if they are not the next rows of a
    mechanism with correlated noise; or if the number of all rounds would not
    fit 64 bits.
    """
    _count(connection, rounds, count)
    _fold_record(connection, rounds, count)


def append_reservation(connection: Database, rounds: Rounds, count: int) -> int:
    """Reserves `count` rounds, and returns the number of the new row.

    It refuses what `append_record` refuses.
    """
    _count(connection, rounds, count)
    return _append(connection, "reserve", rounds, count)


def _count(connection: Database, rounds: Rounds, count: int) -> None:
    """Counts rounds in the totals, if all of them may be added."""
    _check_open(connection, rounds.run)
    _check_mechanisms(connection, rounds, count)
    _charge(connection, rounds.charge, count)
    _add_to_total(connection, count)


def append_statement(
    connection: Database,
    statement: Statement,
    *,
    run: int | None = None,
) -> int:
    """Adds a row with a statement, and returns the number of the row.

    The statement names a run if it is the plan or the end of that run, or a
    start that continues it.
    """
    if not isinstance(statement, RunStart):
        _check_open(connection, run)
    rounds = Rounds(text_from_statement(statement), run)
    seq = _append(connection, statement.kind, rounds, 0)
    if isinstance(statement, Account):
        found = balances_from_text(meta(connection)["balances"])
        found[seq] = opened(statement.capacities)
        _set_meta(connection, "balances", text_from_balances(found))
    return seq


def copy(connection: Database, rows: list[Row], meta: dict[str, str]) -> None:
    """Writes the rows of another log, with their hashes, into an empty log."""
    for row in rows:
        _insert(connection, row)
    for key, value in meta.items():
        _set_meta(connection, key, value)


def settle(
    connection: Database, seq: int, rounds: Rounds, count: int, used: int
) -> None:
    """Counts `used` rounds in place of the `count` that row `seq` reserved.

    It raises if the row does not hold this reservation, or was settled before.
    """
    last = _last(connection)
    found = row(connection, seq)
    if last is None or (
        (found.kind, found.run, found.body, found.count, found.charge)
        != ("reserve", rounds.run, rounds.body, count, rounds.price)
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
    content = (
        *(seq, kind, rounds.run, rounds.body, count, target),
        *(rounds.price, int(time.time())),
    )
    before = chain.hash_before(meta(connection), last)
    _insert(connection, Row(*content, chain.hash_of(before, *content)))
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
    if last is not None and (
        (last.kind, last.run, last.body, last.charge)
        == ("record", rounds.run, rounds.body, rounds.price)
    ):
        _delete(connection, last.seq)
        count += last.count
    _append(connection, "record", rounds, count)


def _delete(connection: Database, seq: int) -> None:
    connection.execute("DELETE FROM log WHERE seq = ?", [seq])


def _check_open(connection: Database, run: int | None) -> None:
    """Raises if a run has ended; another process may have ended it."""
    if run is None:
        return
    # The kind stands in the text: a parameter would not use the index `ends`.
    end = connection.execute(
        f"SELECT seq FROM log WHERE run = ? AND kind = '{RunEnd.kind}' "
        "ORDER BY seq DESC LIMIT 1",
        [run],
    ).fetchone()
    if end is None:
        return
    if not connection.execute(
        f"SELECT 1 FROM log WHERE seq > ? AND run = ? "
        f"AND kind = '{RunStart.kind}'",
        [*end, run],
    ).fetchone():
        raise LedgerWriteError(
            f"Run {run} of the ledger has ended. Nothing more may be released "
            "in it. Start another run with `ledger.start_run`."
        )


def _check_mechanisms(connection: Database, rounds: Rounds, count: int) -> None:
    """Raises unless rounds are the next rows of their mechanisms."""
    for each in mechanism_ids(rounds.body):
        found = connection.execute(
            f"{_SELECT} WHERE bodies.body LIKE ? ORDER BY seq", [f"%{each}%"]
        )
        earlier = [Row(*values) for values in found]
        own = [
            row
            for row in earlier
            if row.kind in KINDS_OF_ROUNDS and each in mechanism_ids(row.body)
        ]
        check_next_rows(rounds.body, rounds.run, count, each, counted(own))
        if own and rounds.run is not None:
            holder = _start_before(connection, rounds.run, own[0].seq)
            check_holder(each, holder.author)


def _start_before(connection: Database, run: int, seq: int) -> RunStart:
    """Returns who had begun or continued a run last, before a row."""
    found = connection.execute(
        f"{_SELECT} WHERE kind = ? AND seq < ? AND (seq = ? OR run = ?) "
        "ORDER BY seq DESC LIMIT 1",
        [RunStart.kind, seq, run, run],
    )
    return statement_of(RunStart, Row(*found.fetchone()).body)


def _charge(connection: Database, charge: Charge | None, count: int) -> None:
    """Charges `count` rounds to their account; refunds them if negative."""
    balances = balances_from_text(meta(connection)["balances"])
    if charge is None:
        if balances:
            raise LedgerWriteError(
                "The ledger has accounts, and one of them must pay for every "
                "round. Received: rounds without an account. Nothing may be "
                "released. A training that began before an account was opened "
                "must be started again: it takes the only account by itself. "
                "Choose one of several with `run=RunDetails(account=...)`."
            )
        return
    balances[charge.account] = balances[charge.account].after(charge, count)
    _set_meta(connection, "balances", text_from_balances(balances))


def _last(connection: Database, skip: int = 0) -> Row | None:
    """Returns the last row; with `skip`, the row that many rows before it."""
    values = connection.execute(
        f"{_SELECT} ORDER BY seq DESC LIMIT 1 OFFSET ?", [skip]
    ).fetchone()
    return None if values is None else Row(*values)


def _add_to_total(connection: Database, count: int) -> None:
    before = int(meta(connection)["total"])
    if before + count > LARGEST_COUNT:
        raise OverflowError(
            "`count` must fit 64 bits together with the rounds of the ledger. "
            f"Received: count={count!r}, and the ledger holds {before} rounds. "
            "Record fewer rounds."
        )
    _set_meta(connection, "total", str(before + count))


def _set_meta(connection: Database, key: str, value: str) -> None:
    connection.execute("UPDATE meta SET value = ? WHERE key = ?", [value, key])
