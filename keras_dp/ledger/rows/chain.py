"""The chain of hashes over the rows of a ledger.

Each row holds a SHA-256 hash over its content and the hash of the row before.
The table `meta` holds the number of rows, the number of rounds, what the
accounts have spent, and the *head*: a hash over the last row's hash and these
numbers. With these hashes, `verify` finds a row that was edited, inserted,
exchanged or removed. Somebody who removes the last rows must compute a new
head: no hash in the file is the head of the shorter ledger.

The chain has no key. So it does not show that somebody computed all hashes
anew, or put back an old copy of the file. A copy of the head that is kept
elsewhere shows both.
"""

import hashlib

from keras_dp.errors import (
    BudgetExceededError,
    LedgerFormatError,
    LedgerIntegrityError,
)
from keras_dp.ledger.rows import statements
from keras_dp.ledger.rows.charges import (
    Balance,
    Charge,
    opened,
    text_from_balances,
)
from keras_dp.ledger.rows.codec import canonical
from keras_dp.ledger.rows.row import (
    KINDS_OF_ROUNDS,
    LARGEST_COUNT,
    Row,
    counted,
)

_UNFIT = "its hash does not fit its content"


def first_meta(header: str) -> dict[str, str]:
    """Returns the content of `meta` in a ledger without rows."""
    meta = {"header": header, "rows": "0", "total": "0", "writer": ""}
    meta["balances"] = text_from_balances({})
    return {**meta, "head": head(meta, None)}


def hash_of(previous: str, *content: object) -> str:
    """Returns the hash of a row from `hash_before` and its other fields."""
    return _digest([previous, *content])


def hash_before(meta: dict[str, str], row: Row | None) -> str:
    """Returns the hash of a row, or the header's hash before the first row."""
    if row is not None:
        return row.hash
    return hashlib.sha256(meta.get("header", "").encode()).hexdigest()


def head(meta: dict[str, str], last: Row | None) -> str:
    """Returns the head: the hash over the last row and the table `meta`."""
    end = [meta.get(key) for key in ("rows", "total", "balances", "writer")]
    return _digest([hash_before(meta, last), *end])


def verify(all_rows: list[Row], meta: dict[str, str]) -> None:
    """Checks every row, and that all of them together fit the table `meta`.

    The error names the first row that is wrong.
    """
    previous = None
    reserved: dict[int, Row] = {}
    runs: dict[int, bool] = {}
    for position, row in enumerate(all_rows, start=1):
        _check_types(row)
        if row.seq != position:
            raise contradiction(position, "it is missing")
        _check_hash(row, hash_before(meta, previous))
        if row.kind in KINDS_OF_ROUNDS:
            _check_rounds(row, reserved)
        else:
            _check_statement(row)
        _check_run(row, runs)
        previous = row
    total = sum(amount.count for amount in counted(all_rows))
    _check_meta(meta, previous)
    if meta["total"] != str(total) or total > LARGEST_COUNT:
        raise _wrong_end(f"{total} rounds")
    if meta["balances"] != text_from_balances(balances(all_rows)):
        raise _wrong_end("accounts that have spent something else")


def balances(all_rows: list[Row]) -> dict[int, Balance]:
    """Returns the balance of each account, by the row that opened it.

    It refuses an account that spent more than its capacity, paid before it was
    opened, or has the name of another account.
    """
    found: dict[int, Balance] = {}
    names: set[str] = set()
    used = {row.target: row.count for row in all_rows if row.kind == "settle"}
    for row in all_rows:
        count = used.get(row.seq, row.count)
        if row.kind != "settle" and row.charge is not None:
            try:
                charge = Charge.from_text(row.charge)
                spent = found[charge.account].after(charge, count)
            except (
                KeyError,
                IndexError,
                BudgetExceededError,
                LedgerFormatError,
            ) as error:
                raise contradiction(
                    row.seq, "its account cannot pay this charge"
                ) from error
            found[charge.account] = spent
        if row.kind == "account":
            account = statements.statement_of(statements.Account, row.body)
            if account.name in names:
                raise contradiction(
                    row.seq, "its account has a name that was taken"
                )
            names.add(account.name)
            found[row.seq] = opened(account.capacities)
    return found


def check_end(
    meta: dict[str, str], before: Row | None, last: Row | None
) -> None:
    """Checks the last row and the table `meta`, at the start of a transaction.

    Only the end of the log is checked, to which the transaction appends;
    `verify` checks all rows. An end that does not fit its hash was edited, or a
    process died in the middle of a commit that nobody has undone.
    """
    if last is not None:
        _check_types(last)
        _check_hash(last, hash_before(meta, before))
    _check_meta(meta, last)


def contradiction(seq: int, reason: str) -> LedgerIntegrityError:
    """Returns the error to raise for a row that is wrong."""
    return LedgerIntegrityError(
        f"Row {seq} of the ledger is not as it was written: {reason}. The "
        "ledger must not be trusted. Restore it from a copy."
    )


def _check_types(row: Row) -> None:
    """Refuses types that the columns rule out, but a forged file can hold."""
    given = (row.target, row.run)
    numbers = [number for number in given if number is not None]
    numbers += [row.seq, row.count, row.time]
    if any(
        type(number) is not int or abs(number) > LARGEST_COUNT
        for number in numbers
    ):
        raise contradiction(
            row.seq, "a number in it is not an integer of 64 bits"
        )
    texts = [row.kind, row.body, row.hash]
    if row.charge is not None:
        texts.append(row.charge)
    if any(type(text) is not str for text in texts):
        raise contradiction(row.seq, "a text in it is missing")


def _check_hash(row: Row, previous: str) -> None:
    if row.hash != hash_of(previous, *row[:-1]):
        raise contradiction(row.seq, _UNFIT)


def _check_rounds(row: Row, reserved: dict[int, Row]) -> None:
    if row.kind == "settle":
        reservation = reserved.pop(row.target or 0, None)
        if (
            reservation is None
            or reservation.body != row.body
            or reservation.run != row.run
            or reservation.charge != row.charge
            or not 0 <= row.count <= reservation.count
        ):
            raise contradiction(row.seq, "it settles no open reservation")
        return
    if row.kind == "reserve":
        reserved[row.seq] = row
    if row.count < 1 or row.target is not None:
        raise contradiction(row.seq, "its count or target cannot be")


def _check_statement(row: Row) -> None:
    if row.kind not in statements.KINDS:
        raise LedgerFormatError(
            f"Row {row.seq} of the ledger is of the kind {row.kind!r}, which "
            "this version of keras_dp does not know. Read the ledger with the "
            "version that wrote it."
        )
    if row.count or row.target is not None:
        raise contradiction(row.seq, "its count or target cannot be")
    if row.charge is not None:
        raise contradiction(row.seq, "it cannot be charged")


def _check_run(row: Row, runs: dict[int, bool]) -> None:
    """Raises unless the row belongs to a run that may have it.

    `runs` says of each run, by its row, whether it has ended, and is updated.
    """
    if row.kind == "run":
        if row.run is not None and row.run not in runs:
            raise contradiction(row.seq, "it continues no run")
        runs[row.run or row.seq] = False
        return
    if row.kind in statements.KINDS_WITHOUT_RUN:
        if row.run is not None:
            raise contradiction(row.seq, "it belongs to no run")
        return
    if row.run is None:
        if row.kind in ("plan", "end"):
            raise contradiction(row.seq, "its run is missing")
        return
    if row.run not in runs or (runs[row.run] and row.kind != "settle"):
        raise contradiction(row.seq, "its run never began, or has ended")
    if row.kind == "end":
        runs[row.run] = True


def _check_meta(meta: dict[str, str], last: Row | None) -> None:
    row_count = 0 if last is None else last.seq
    expected = {
        **{
            key: meta.get(key)
            for key in ("header", "total", "balances", "writer")
        },
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
