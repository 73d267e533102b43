"""Copies of ledgers: as JSON, or in memory up to one of the rows."""

import sqlite3

from keras_dp.errors import LedgerFormatError
from keras_dp.ledger.places import schema
from keras_dp.ledger.rows import chain, log
from keras_dp.ledger.rows.canonical import canonical, decoded
from keras_dp.ledger.rows.charges import text_from_balances
from keras_dp.ledger.rows.row import Row, counted

_KIND = "keras_dp ledger"


def text_of(rows: list[Row], meta: dict[str, str]) -> str:
    """Returns the whole ledger as canonical JSON."""
    return canonical(
        {"kind": _KIND, "meta": meta, "rows": [list(row) for row in rows]}
    )


def database_from_text(text: str) -> sqlite3.Connection:
    """Inverts `text_of`: returns a database in memory with the same rows.

    Raises:
        LedgerFormatError: The text is not the text of a ledger.
        LedgerIntegrityError: A row in the text was edited, added or removed.
    """
    try:
        content = decoded(text)
        if content["kind"] != _KIND:
            raise ValueError(f"its kind is {content['kind']!r}")
        rows = [Row(*values) for values in content["rows"]]
        meta = dict(content["meta"])
        chain.verify(rows, meta)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise LedgerFormatError(
            f"`text` must be a ledger as JSON. Received: another text: {error}."
            " `PrivacyLedger.to_json` returns such a text."
        ) from error
    return _database(rows, meta)


def database_until(
    rows: list[Row], meta: dict[str, str], number: int
) -> sqlite3.Connection:
    """Returns a database in memory with the first rows of a ledger.

    Args:
        rows: All rows of the ledger.
        meta: The table `meta` of the ledger.
        number: The number of rows in the copy.
    """
    rows = rows[:number]
    total = sum(part.count for part in counted(rows))
    before = {
        **meta,
        "rows": str(len(rows)),
        "total": str(total),
        "balances": text_from_balances(chain.balances(rows)),
    }
    last = rows[-1] if rows else None
    return _database(rows, {**before, "head": chain.head(before, last)})


def _database(rows: list[Row], meta: dict[str, str]) -> sqlite3.Connection:
    connection = schema.new_database(meta["header"])
    connection.execute("BEGIN")
    log.copy(connection, rows, meta)
    connection.execute("COMMIT")
    return connection
