"""The tables of a ledger file, and the marks by which it is recognized.

A ledger file is a SQLite database with an application id, a format version, and
exactly the tables below. A view, a trigger or another table could return rows
that nobody wrote, or never end. So the text of the schema is compared before
any table is read.
"""

import functools
import sqlite3

from keras_dp.errors import LedgerFormatError, LedgerVersionError
from keras_dp.ledger.rows import chain, log
from keras_dp.ledger.rows.charges import text_from_balances
from keras_dp.ledger.rows.header import FORMAT_VERSION
from keras_dp.ledger.rows.row import Row, counted

_APPLICATION_ID = 0x6B44504C  # "kDPL"

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE bodies (
  id INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE log (
  seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, run INTEGER,
  body INTEGER NOT NULL, count INTEGER NOT NULL, target INTEGER, charge TEXT,
  time INTEGER NOT NULL, hash TEXT NOT NULL) STRICT;
CREATE INDEX ends ON log (run) WHERE kind = 'end';
"""


def new_database(header: str) -> sqlite3.Connection:
    """Returns a connection to a ledger in memory that holds no rows."""
    connection = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False
    )
    connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={FORMAT_VERSION}")
    connection.executescript(_TABLES)
    connection.executemany(
        "INSERT INTO meta VALUES (?, ?)", chain.first_meta(header).items()
    )
    return connection


def database_until(rows: list[Row], meta: dict[str, str]) -> sqlite3.Connection:
    """Returns the first rows of the ledger with `meta`, in memory."""
    total = sum(part.count for part in counted(rows))
    before = {
        **meta,
        "rows": str(len(rows)),
        "total": str(total),
        "balances": text_from_balances(chain.balances(rows)),
    }
    last = rows[-1] if rows else None
    connection = new_database(meta["header"])
    connection.execute("BEGIN")
    log.copy(connection, rows, {**before, "head": chain.head(before, last)})
    connection.execute("COMMIT")
    return connection


def check_marks(connection: sqlite3.Connection, name: str) -> None:
    """Raises unless it is a ledger of this format; reads no table."""
    if _pragma(connection, "application_id") != _APPLICATION_ID:
        raise LedgerFormatError(
            f"The file {name} is empty or a SQLite database, but not a ledger. "
            "It was not changed."
        )
    version = _pragma(connection, "user_version")
    if version != FORMAT_VERSION:
        raise LedgerVersionError(
            f"The ledger {name} has format {version}, and this version of "
            f"keras_dp reads format {FORMAT_VERSION}. Read it with the version "
            "that wrote it. The file was not changed."
        )


def check_tables(connection: sqlite3.Connection, name: str) -> None:
    """Raises unless the database has the tables of a ledger and nothing else.

    Another table, a view, a trigger or a changed table is refused.
    """
    expected = _schema_of_a_new_database()
    found = _schema(connection, limit=len(expected) + 1)
    if found != expected:
        others = sorted({str(row[1]) for row in found ^ expected})
        raise LedgerFormatError(
            f"The ledger {name} must hold its tables only. Received: missing, "
            f"changed or added {others!r}. It was not changed. Restore it from "
            "a copy."
        )


@functools.cache
def _schema_of_a_new_database() -> frozenset[tuple[object, ...]]:
    connection = new_database("")
    try:
        return _schema(connection, limit=-1)
    finally:
        connection.close()


def _schema(
    connection: sqlite3.Connection, limit: int
) -> frozenset[tuple[object, ...]]:
    return frozenset(
        connection.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_schema LIMIT ?",
            [limit],
        )
    )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)
