"""The file under a ledger: made atomically, checked before it is touched.

The file is SQLite in write-ahead-log mode with `synchronous=FULL`: what a
transaction has committed survives the death of the process and of the machine.
While a ledger is open, or after its process died, part of it lives in
`FILE-wal`: copy both, or close the ledger first, which merges them. A process
that has a ledger open must not open its file in another way, not even to copy
it: see `ledger.connections`.
"""

import contextlib
import errno
import os
import secrets
import sqlite3
from pathlib import Path

from keras_dp.errors import (
    LedgerError,
    LedgerFormatError,
    LedgerVersionError,
    LedgerWriteError,
)
from keras_dp.ledger import connections
from keras_dp.ledger.header import FORMAT_VERSION, Header

_APPLICATION_ID = 0x6B44504C  # "kDPL"

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE bodies (
  id INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE log (
  seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body INTEGER NOT NULL,
  count INTEGER NOT NULL, target INTEGER, hash TEXT NOT NULL) STRICT;
"""


def in_memory(header: Header, head: str) -> sqlite3.Connection:
    """Returns a connection to a new ledger that is never written to disk."""
    connection = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False
    )
    connections.adopt(connection)
    _initialize(connection, header, head)
    return connection


def create(path: Path, header: Header, head: str) -> None:
    """Creates a ledger file, unless another process does so first.

    It appears under its name complete, or not at all.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        if Path(f"{path}-wal").exists() and not path.exists():
            raise LedgerWriteError(
                f"The ledger {str(path)!r} cannot be created: the write-ahead "
                "log of another one, which was removed, lies beside it. "
                "Restore that ledger, or remove its -wal and -shm files."
            )
        with contextlib.closing(
            sqlite3.connect(temporary, isolation_level=None)
        ) as connection:
            # Marks are in the file itself, not in a log beside it.
            connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={FORMAT_VERSION}")
            _initialize(connection, header, head)
            connection.execute("PRAGMA journal_mode=WAL")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # Never replaces an existing file.
        _sync_folder(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise LedgerWriteError(
            f"The ledger {str(path)!r} cannot be created: {error}"
        ) from error
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                Path(f"{temporary}{suffix}").unlink(missing_ok=True)


def connect_reading(path: Path) -> sqlite3.Connection:
    """Returns a read-only connection to a ledger file that is sound.

    Raises:
        FileNotFoundError: There is no such file.
        LedgerFormatError: The file is foreign, truncated or corrupt.
        LedgerVersionError: A newer version of the format.
        LedgerError: The file cannot be opened for another reason.
    """
    if not path.exists():
        raise FileNotFoundError(
            errno.ENOENT, os.strerror(errno.ENOENT), str(path)
        )
    if not path.is_file():
        raise LedgerFormatError(
            f"`path` must be a ledger file. Received: path={str(path)!r}."
        )
    try:
        _look(path)
        connection = _connect_reading(path)
        try:
            _check_marks(connection, path)
            (answer,) = connection.execute(
                "PRAGMA integrity_check(1)"
            ).fetchone()
            if answer != "ok":
                raise _corrupt(path, answer)
        except BaseException:
            connections.close(connection)
            raise
    except UnicodeDecodeError as error:
        raise _corrupt(path, "it holds text that is none") from error
    except sqlite3.DatabaseError as error:
        raise _unreadable(path, error) from error
    return connection


def connect_writing(path: Path) -> sqlite3.Connection:
    """Returns a connection that makes each commit durable.

    Raises:
        LedgerWriteError: The file cannot be written.
    """
    try:
        connection = connections.connect(path, "mode=rw")
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            # SQLite opens what it may not write for reading, and says so late.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except BaseException:
            connections.close(connection)
            raise
    except sqlite3.Error as error:
        raise LedgerWriteError(
            f"The ledger {str(path)!r} cannot be opened for writing: {error}"
        ) from error
    return connection


def merge_log(connection: sqlite3.Connection) -> None:
    """Moves the write-ahead log into the file, if no one is reading it."""
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA busy_timeout=1000")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _initialize(
    connection: sqlite3.Connection, header: Header, head: str
) -> None:
    connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
    connection.executemany(
        "INSERT INTO meta VALUES (?, ?)",
        [
            ("header", header.as_text()),
            ("head", head),
            ("rows", "0"),
            ("total", "0"),
        ],
    )


def _look(path: Path) -> None:
    """Refuses what is no ledger, leaving nothing beside it."""
    has_log = connections.has_log(path)
    connection = connections.connect(path, "mode=ro&immutable=1")
    try:
        is_whole = _is_whole(connection, path)
    finally:
        connections.close(connection)
    # While a log is being merged into the file, or if that was cut short, the
    # file makes sense only together with the log.
    if not is_whole and not (has_log or connections.has_log(path)):
        raise LedgerFormatError(
            f"The ledger {str(path)!r} is truncated or corrupt. Received: "
            f"{path.stat().st_size} bytes. It was not changed. Restore it "
            "from a copy."
        )


def _is_whole(connection: sqlite3.Connection, path: Path) -> bool:
    try:
        _check_marks(connection, path)
        pages = _pragma(connection, "page_count")
        page_size = _pragma(connection, "page_size")
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        return False
    return path.stat().st_size >= pages * page_size


def _check_marks(connection: sqlite3.Connection, path: Path) -> None:
    name = f"The file {str(path)!r}"
    if _pragma(connection, "application_id") != _APPLICATION_ID:
        raise LedgerFormatError(
            f"{name} is empty or a SQLite database, but not a ledger. It was "
            "not changed."
        )
    version = _pragma(connection, "user_version")
    if version > FORMAT_VERSION:
        raise LedgerVersionError(
            f"{name} has format {version}, this version of keras_dp reads up "
            f"to {FORMAT_VERSION}. Install a newer keras_dp. It was not "
            "changed."
        )
    if version < 1:
        raise _corrupt(path, f"format {version}")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)


def _connect_reading(path: Path) -> sqlite3.Connection:
    connection = connections.connect(path, "mode=ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1")
    except sqlite3.DatabaseError as error:
        connections.close(connection)
        if error.sqlite_errorcode & 0xFF not in (
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_READONLY,
        ):
            raise
        # A folder that cannot be written holds no index of the log. Without a
        # log there is nothing to index.
        if connections.has_log(path):
            raise LedgerError(
                f"The ledger {str(path)!r} has a write-ahead log that cannot "
                f"be read from here: {error}. Make its folder writable."
            ) from error
        return connections.connect(path, "mode=ro&immutable=1")
    return connection


def _unreadable(path: Path, error: sqlite3.DatabaseError) -> LedgerError:
    """Tells a file that is wrong from one that is locked or forbidden."""
    if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_NOTADB:
        return LedgerFormatError(
            f"The file {str(path)!r} is not a ledger. It was not changed."
        )
    if isinstance(error, sqlite3.OperationalError):
        return LedgerError(
            f"The ledger {str(path)!r} cannot be opened: {error}"
        )
    return _corrupt(path, error)


def _corrupt(path: Path, reason: object) -> LedgerFormatError:
    return LedgerFormatError(
        f"The ledger {str(path)!r} is corrupt: {reason}. It was not changed. "
        "Restore it from a copy."
    )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
