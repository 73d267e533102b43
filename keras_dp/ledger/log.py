"""The rows of a ledger: appended, folded at the tail, chained by hashes.

A row is one of

* `record`: a round happened `count` times;
* `reserve`: a round is about to happen up to `count` times, and counts as if
  it had;
* `settle`: of the reservation in row `target`, `count` rounds did happen.

Each row holds the SHA-256 of its content and of the hash of the row before;
the last hash and the numbers of rows and of rounds stand in `meta`. So an
edited, inserted, exchanged or removed row is found. The tail stays short: a
row that repeats the record before it is folded into it, and a reservation that
is still the last row is replaced by what was used when it is settled; only if
another process has appended since does it need a `settle` row.

What the chain cannot show: someone who computes all hashes anew, or brings
back an old copy of the file. Keep the head hash elsewhere to notice that.
"""

import hashlib
import sqlite3
from typing import NamedTuple

from keras_dp.errors import LedgerIntegrityError
from keras_dp.ledger.codec import canonical

LARGEST_COUNT = 2**63 - 1


class Row(NamedTuple):
    """One row of the log, its body in words."""

    seq: int
    kind: str
    body: str
    count: int  # type: ignore[assignment]  # Hides tuple.count, unneeded.
    target: int | None
    hash: str


class CountedBody(NamedTuple):
    """What a row amounts to: a round, how often, and how much is reserved."""

    body: str
    count: int  # type: ignore[assignment]  # Hides tuple.count, unneeded.
    unsettled: int


def genesis(header: str) -> str:
    """Returns the hash before the first row."""
    return hashlib.sha256(header.encode()).hexdigest()


def append_record(
    connection: sqlite3.Connection, body: str, count: int
) -> None:
    """Adds `count` rounds; call it inside a transaction."""
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
    """Replaces the `count` rounds that row `seq` reserved by those used."""
    row = _row(connection, seq)
    if row is None or row[1:4] != ("reserve", body, count):
        raise _contradiction(seq, "it is not the reservation it was")
    _add_to_total(connection, used - count)
    if seq == _row_count(connection):
        _delete_last(connection, seq)
        if used:
            _fold_record(connection, body, used)
        return
    if connection.execute(
        "SELECT 1 FROM log WHERE seq > ? AND target = ?", [seq, seq]
    ).fetchone():
        raise _contradiction(seq, "it is settled already")
    _append(connection, "settle", body, used, target=seq)


def rows(connection: sqlite3.Connection) -> list[Row]:
    """Returns all rows, in order."""
    return [
        Row(*values)
        for values in connection.execute(
            "SELECT seq, kind, bodies.body, count, target, hash FROM log "
            "LEFT JOIN bodies ON bodies.id = log.body ORDER BY seq"
        )
    ]


def counted(all_rows: list[Row]) -> list[CountedBody]:
    """Returns what the rows amount to, each where it was recorded."""
    used = {row.target: row.count for row in all_rows if row.kind == "settle"}
    amounts = []
    for row in all_rows:
        if row.kind == "record":
            amounts.append(CountedBody(row.body, row.count, 0))
        elif row.kind == "reserve":
            count = used.get(row.seq, row.count)
            unsettled = 0 if row.seq in used else count
            amounts.append(CountedBody(row.body, count, unsettled))
    return [amount for amount in amounts if amount.count]


def verify(all_rows: list[Row], meta: dict[str, str]) -> None:
    """Raises if the rows are not those that were written.

    Raises:
        LedgerIntegrityError: The message names the first row that is wrong.
    """
    previous = genesis(meta.get("header", ""))
    reserved: dict[int, Row] = {}
    for position, row in enumerate(all_rows, start=1):
        if row.seq != position:
            raise _contradiction(position, "it is missing")
        if row.hash != _hash(previous, *row[:5]):
            raise _contradiction(row.seq, "its hash does not fit its content")
        previous = row.hash
        _check_row(row, reserved)
    total = sum(amount.count for amount in counted(all_rows))
    expected = {
        "header": meta.get("header"),
        "head": previous,
        "rows": str(len(all_rows)),
        "total": str(total),
    }
    if meta != expected:
        wrong = sorted(
            key
            for key in meta.keys() | expected.keys()
            if meta.get(key) != expected.get(key)
        )
        raise LedgerIntegrityError(
            "The ledger must end where its header says it does. Received: "
            f"{len(all_rows)} rows, {total} rounds, which contradicts {wrong}. "
            "The header was edited, or rows were removed or added at the end."
        )


def _check_row(row: Row, reserved: dict[int, Row]) -> None:
    if row.kind == "reserve":
        reserved[row.seq] = row
    elif row.kind == "settle":
        reservation = reserved.pop(row.target or 0, None)
        if (
            reservation is None
            or reservation.body != row.body
            or not 0 <= row.count <= reservation.count
        ):
            raise _contradiction(row.seq, "it settles no open reservation")
        return
    elif row.kind != "record":
        raise _contradiction(row.seq, f"its kind is {row.kind!r}")
    if row.count < 1 or row.target is not None:
        raise _contradiction(row.seq, "its count or target cannot be")


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
    seq = _row_count(connection) + 1
    digest = _hash(_meta(connection, "head"), seq, kind, body, count, target)
    connection.execute(
        "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)",
        [seq, kind, body_id, count, target, digest],
    )
    _set_tail(connection, digest, seq)
    return seq


def _fold_record(connection: sqlite3.Connection, body: str, count: int) -> None:
    last = _row(connection, _row_count(connection))
    if last is not None and last.kind == "record" and last.body == body:
        _delete_last(connection, last.seq)
        count += last.count
    _append(connection, "record", body, count)


def _delete_last(connection: sqlite3.Connection, seq: int) -> None:
    connection.execute("DELETE FROM log WHERE seq = ?", [seq])
    before = _row(connection, seq - 1)
    head = (
        genesis(_meta(connection, "header"))
        if before is None
        else (before.hash)
    )
    _set_tail(connection, head, seq - 1)


def _row(connection: sqlite3.Connection, seq: int) -> Row | None:
    values = connection.execute(
        "SELECT seq, kind, bodies.body, count, target, hash FROM log "
        "LEFT JOIN bodies ON bodies.id = log.body WHERE seq = ?",
        [seq],
    ).fetchone()
    return None if values is None else Row(*values)


def _meta(connection: sqlite3.Connection, key: str) -> str:
    values = connection.execute(
        "SELECT value FROM meta WHERE key = ?", [key]
    ).fetchone()
    if values is None:
        raise LedgerIntegrityError(f"The ledger has no {key!r} any more.")
    return str(values[0])


def _row_count(connection: sqlite3.Connection) -> int:
    return int(_meta(connection, "rows"))


def _add_to_total(connection: sqlite3.Connection, count: int) -> None:
    total = int(_meta(connection, "total")) + count
    if total > LARGEST_COUNT:
        raise OverflowError(
            "`count` must fit 64 bits together with all rounds of the ledger. "
            f"Received: count={count!r}, with {total - count} before it."
        )
    connection.execute(
        "UPDATE meta SET value = ? WHERE key = 'total'", [str(total)]
    )


def _set_tail(
    connection: sqlite3.Connection, head: str, row_count: int
) -> None:
    connection.executemany(
        "UPDATE meta SET value = ? WHERE key = ?",
        [(head, "head"), (str(row_count), "rows")],
    )


def _hash(
    previous: str,
    seq: int,
    kind: str,
    body: str,
    count: int,
    target: int | None,
) -> str:
    content = canonical([previous, seq, kind, body, count, target])
    return hashlib.sha256(content.encode()).hexdigest()


def _contradiction(seq: int, reason: str) -> LedgerIntegrityError:
    return LedgerIntegrityError(
        f"Row {seq} of the ledger is not as it was written: {reason}. The "
        "ledger must not be trusted. Restore it from a copy."
    )
