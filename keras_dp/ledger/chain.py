"""The chain of hashes over the rows of a ledger.

Each row holds the SHA-256 of its content and of the hash of the row before.
The table `meta` holds the numbers of rows and of rounds, and the *head*: the
hash over the last row's hash and those numbers. So an edited, inserted,
exchanged or removed row is found, and the rows at the end cannot be removed by
copying a hash that stands in the file.

The chain has no key. It does not show that someone computed the hashes anew, or
brought back an old copy of the file. Keep the head elsewhere to notice that.
"""

import hashlib

from keras_dp.errors import LedgerIntegrityError
from keras_dp.ledger.codec import canonical
from keras_dp.ledger.rows import LARGEST_COUNT, Row, counted

_UNFIT = "its hash does not fit its content"


def first_meta(header: str) -> dict[str, str]:
    """Returns the content of `meta` in a ledger without rows."""
    meta = {"header": header, "rows": "0", "total": "0", "writer": ""}
    return {**meta, "head": head(meta, None)}


def hash_of(
    previous: str,
    seq: int,
    kind: str,
    body: str,
    count: int,
    target: int | None,
) -> str:
    """Returns the hash of a row that follows the one with hash `previous`."""
    return _digest([previous, seq, kind, body, count, target])


def hash_before(meta: dict[str, str], row: Row | None) -> str:
    """Returns the hash that the row after `row` continues from.

    Args:
        meta: Holds the header, from which the first row continues.
        row: `None` stands before the first row.
    """
    if row is not None:
        return row.hash
    return hashlib.sha256(meta.get("header", "").encode()).hexdigest()


def head(meta: dict[str, str], last: Row | None) -> str:
    """Returns the hash over the end of a ledger.

    Args:
        meta: Holds the numbers of rows and rounds, and the writer.
        last: The last row, `None` if there is none.
    """
    end = [meta.get(key) for key in ("rows", "total", "writer")]
    return _digest([hash_before(meta, last), *end])


def verify(all_rows: list[Row], meta: dict[str, str]) -> None:
    """Raises if the rows are not those that were written.

    Raises:
        LedgerIntegrityError: The message names the first row that is wrong.
    """
    previous = None
    reserved: dict[int, Row] = {}
    for position, row in enumerate(all_rows, start=1):
        _check_types(row)
        if row.seq != position:
            raise contradiction(position, "it is missing")
        _check_hash(row, hash_before(meta, previous))
        _check_kind(row, reserved)
        previous = row
    total = sum(amount.count for amount in counted(all_rows))
    _check_meta(meta, previous)
    if meta["total"] != str(total) or total > LARGEST_COUNT:
        raise _wrong_end(f"{total} rounds")


def check_end(
    meta: dict[str, str], before: Row | None, last: Row | None
) -> None:
    """Checks what a transaction builds on, as `verify` checks everything.

    Args:
        meta: The content of the table.
        before: The last row but one, `None` if there is none.
        last: The last row, `None` if there is none.

    Raises:
        LedgerIntegrityError: They do not fit: they were edited, or are what a
            commit left that was cut short and was not undone.
    """
    if last is not None:
        _check_types(last)
        _check_hash(last, hash_before(meta, before))
    _check_meta(meta, last)


def contradiction(seq: int, reason: str) -> LedgerIntegrityError:
    """Returns the error of a row that is wrong."""
    return LedgerIntegrityError(
        f"Row {seq} of the ledger is not as it was written: {reason}. The "
        "ledger must not be trusted. Restore it from a copy."
    )


def _check_types(row: Row) -> None:
    """Refuses values that the columns do not let in, but a forged file may."""
    numbers = (row.seq, row.count, 0 if row.target is None else row.target)
    if any(type(number) is not int for number in numbers):
        raise contradiction(row.seq, "a number in it is not an integer")
    if any(type(text) is not str for text in (row.kind, row.body, row.hash)):
        raise contradiction(row.seq, "a text in it is missing")


def _check_hash(row: Row, previous: str) -> None:
    if row.hash != hash_of(previous, *row[:5]):
        raise contradiction(row.seq, _UNFIT)


def _check_kind(row: Row, reserved: dict[int, Row]) -> None:
    if row.kind == "reserve":
        reserved[row.seq] = row
    elif row.kind == "settle":
        reservation = reserved.pop(row.target or 0, None)
        if (
            reservation is None
            or reservation.body != row.body
            or not 0 <= row.count <= reservation.count
        ):
            raise contradiction(row.seq, "it settles no open reservation")
        return
    elif row.kind != "record":
        raise contradiction(row.seq, f"its kind is {row.kind!r}")
    if row.count < 1 or row.target is not None:
        raise contradiction(row.seq, "its count or target cannot be")


def _check_meta(meta: dict[str, str], last: Row | None) -> None:
    row_count = 0 if last is None else last.seq
    expected = {
        **{key: meta.get(key) for key in ("header", "total", "writer")},
        "rows": str(row_count),
        "head": head(meta, last),
    }
    if meta != expected:
        raise _wrong_end(f"{row_count} rows")


def _wrong_end(received: str) -> LedgerIntegrityError:
    return LedgerIntegrityError(
        "The ledger must end where its table `meta` says it does. Received: "
        f"{received}. The table was edited, or rows were removed or added at "
        "the end. The ledger must not be trusted. Restore it from a copy."
    )


def _digest(content: list[object]) -> str:
    return hashlib.sha256(canonical(content).encode()).hexdigest()
