"""The log of a ledger in its database: appended, folded, settled and sealed.

The functions run inside a transaction, which `begin` starts and `seal` ends.
The log stays short. A record that repeats the one before is folded into it, and
a reservation that is still the last row is replaced by what was used when it is
settled. It needs a `settle` row only if another process has appended since.
"""

import sqlite3

from keras_dp.ledger import chain
from keras_dp.ledger.rows import LARGEST_COUNT, Row

_SELECT = (
    "SELECT seq, kind, bodies.body, count, target, hash FROM log "
    "LEFT JOIN bodies ON bodies.id = log.body"
)


def rows(connection: sqlite3.Connection) -> list[Row]:
    """Returns all rows, in order."""
    found = connection.execute(f"{_SELECT} ORDER BY seq")
    return [Row(*values) for values in found]


def meta(connection: sqlite3.Connection) -> dict[str, str]:
    """Returns what stands beside the rows; see `ledger.chain`."""
    return dict(connection.execute("SELECT key, value FROM meta"))


def begin(connection: sqlite3.Connection) -> None:
    """Checks the end of the log, on which the transaction builds.

    Raises:
        LedgerIntegrityError: The last row or `meta` is not as it was written.
    """
    chain.check_end(meta(connection), _last(connection, 1), _last(connection))


def seal(connection: sqlite3.Connection, writer: str) -> None:
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


def append_record(
    connection: sqlite3.Connection, body: str, count: int
) -> None:
    """Adds `count` rounds."""
    _add_to_total(connection, count)
    _fold_record(connection, body, count)


def append_reservation(
    connection: sqlite3.Connection, body: str, count: int
) -> int:
    """Reserves `count` rounds, and returns the row's number."""
    _add_to_total(connection, count)
    return _append(connection, "reserve", body, count)


def settle(
    connection: sqlite3.Connection, seq: int, body: str, count: int, used: int
) -> None:
    """Replaces the `count` rounds that row `seq` reserved by those used.

    Raises:
        LedgerIntegrityError: The row is not that reservation, or is settled.
    """
    last = _last(connection)
    values = connection.execute(f"{_SELECT} WHERE seq = ?", [seq]).fetchone()
    if (
        last is None
        or values is None
        or values[1:4] != ("reserve", body, count)
    ):
        raise chain.contradiction(seq, "it is not the reservation it was")
    _add_to_total(connection, used - count)
    if seq == last.seq:
        _delete(connection, seq)
        if used:
            _fold_record(connection, body, used)
        return
    if connection.execute(
        "SELECT 1 FROM log WHERE seq > ? AND target = ?", [seq, seq]
    ).fetchone():
        raise chain.contradiction(seq, "it is settled already")
    _append(connection, "settle", body, used, target=seq)


def _append(
    connection: sqlite3.Connection,
    kind: str,
    body: str,
    count: int,
    target: int | None = None,
) -> int:
    connection.execute("INSERT OR IGNORE INTO bodies (body) VALUES (?)", [body])
    (body_id,) = connection.execute(
        "SELECT id FROM bodies WHERE body = ?", [body]
    ).fetchone()
    last = _last(connection)
    seq = 1 if last is None else last.seq + 1
    previous = chain.hash_before(meta(connection), last)
    digest = chain.hash_of(previous, seq, kind, body, count, target)
    connection.execute(
        "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)",
        [seq, kind, body_id, count, target, digest],
    )
    return seq


def _fold_record(connection: sqlite3.Connection, body: str, count: int) -> None:
    last = _last(connection)
    if last is not None and last.kind == "record" and last.body == body:
        _delete(connection, last.seq)
        count += last.count
    _append(connection, "record", body, count)


def _delete(connection: sqlite3.Connection, seq: int) -> None:
    connection.execute("DELETE FROM log WHERE seq = ?", [seq])


def _last(connection: sqlite3.Connection, skip: int = 0) -> Row | None:
    """Returns the last row, or one of those before it."""
    values = connection.execute(
        f"{_SELECT} ORDER BY seq DESC LIMIT 1 OFFSET ?", [skip]
    ).fetchone()
    return None if values is None else Row(*values)


def _add_to_total(connection: sqlite3.Connection, count: int) -> None:
    before = int(meta(connection)["total"])
    if before + count > LARGEST_COUNT:
        raise OverflowError(
            "`count` must fit 64 bits together with all rounds of the ledger. "
            f"Received: count={count!r}, with {before} before it."
        )
    _set_meta(connection, "total", str(before + count))


def _set_meta(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute("UPDATE meta SET value = ? WHERE key = ?", [value, key])
