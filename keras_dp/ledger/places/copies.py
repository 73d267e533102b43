"""Copies of ledgers in memory, up to one of the rows."""

import sqlite3

from keras_dp.ledger.places import schema
from keras_dp.ledger.rows import chain, log
from keras_dp.ledger.rows.charges import text_from_balances
from keras_dp.ledger.rows.row import Row, counted


def database_until(rows: list[Row], meta: dict[str, str]) -> sqlite3.Connection:
    """Returns a database in memory with the first rows of a ledger.

    Args:
        rows: The first rows of the ledger.
        meta: The table `meta` of the whole ledger.
    """
    total = sum(part.count for part in counted(rows))
    before = {
        **meta,
        "rows": str(len(rows)),
        "total": str(total),
        "balances": text_from_balances(chain.balances(rows)),
    }
    last = rows[-1] if rows else None
    connection = schema.new_database(meta["header"])
    connection.execute("BEGIN")
    log.copy(connection, rows, {**before, "head": chain.head(before, last)})
    connection.execute("COMMIT")
    return connection
