"""The file of a ledger: made whole or not at all, checked before a change.

The file is SQLite with a rollback journal and `synchronous=EXTRA`. So a
transaction that was committed is in the file itself, and survives the death of
the process and of the machine. A process that dies in the middle of a commit
leaves `FILE-journal`; see `ledger.journal`. A process that has a ledger open
must not open its file in another way, not even to copy it; see
`ledger.connections`.
"""

import contextlib
import errno
import os
import re
import secrets
import sqlite3
import stat
from pathlib import Path

from keras_dp import _check, _system
from keras_dp.errors import LedgerError, LedgerFormatError, LedgerWriteError
from keras_dp.ledger.places import connections, journal, schema
from keras_dp.ledger.rows.header import FORMAT_VERSION

# Another process that creates the same ledger may remove what this one is
# about to publish. One of them succeeds, and the others find the ledger.
_ATTEMPTS = 100


def absolute(path: object) -> Path:
    """Returns an absolute path without symbolic links.

    Raises:
        LedgerError: No file can have this path.
    """
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
        if not isinstance(text, str):
            raise TypeError("it is bytes")
        return Path(os.path.realpath(text))
    except (TypeError, ValueError) as error:
        raise LedgerError(
            "`path` must be a str or an os.PathLike[str] without NUL. "
            f"Received: path={_check.shown(path)} ({error}). Turn bytes into "
            "text with os.fsdecode."
        ) from error


def exists(path: Path) -> bool:
    """Returns whether there is a file, or something else, at the path.

    Raises:
        LedgerError: The path cannot be looked up.
    """
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LedgerError(
            "`path` must be the name of a file in a folder that this process "
            f"may enter. Received: path={str(path)!r} ({error.strerror}). "
            "Check the folder, its permissions and the length of the name."
        ) from error
    return True


def create(path: Path, header: str) -> None:
    """Creates a ledger file without rows, if there is none.

    Another process may create it first; this is no error.

    Raises:
        LedgerWriteError: The file cannot be created.
    """
    with contextlib.closing(schema.new_database(header)) as connection:
        content = connection.serialize()
    try:
        _refuse_remains(path)
        for _ in range(_ATTEMPTS):
            if path.exists():
                break
            _publish(content, path)
        _system.sync_folder(path.parent)
    except OSError as error:
        raise LedgerWriteError(
            "`path` must be the name of a file that can be created. Received: "
            f"path={str(path)!r} ({error.strerror}). Check its folder, the "
            "permissions, the disk and the length of the name."
        ) from error


def _remove_leftovers(path: Path) -> None:
    """Removes the temporary files of processes that died in `create`."""
    leftover = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{16}\.new")
    for entry in os.scandir(path.parent):
        if leftover.fullmatch(entry.name):
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


def _publish(content: bytes, path: Path) -> None:
    """Writes a temporary file, and links it to the name if that is free."""
    _remove_leftovers(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            _system.sync(file.fileno())
        _system.publish(temporary, path)
    except FileExistsError:
        pass
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _refuse_remains(path: Path) -> None:
    """Refuses a path where an older ledger left its journal.

    SQLite would take the content of the journal for a part of the new ledger.
    It ignores an empty file, and a journal that begins with a zero byte, which
    was never complete.
    """
    for suffix, ignored in (("-journal", b"\0"), ("-wal", b"")):
        beside = Path(f"{path}{suffix}")
        # In this order: another process may create the ledger meanwhile.
        if _first_byte(beside) not in (b"", ignored) and not path.exists():
            raise LedgerWriteError(
                f"The ledger {str(path)!r} cannot be created: {str(beside)!r} "
                "belongs to an older ledger of this name, which was removed. "
                f"Restore the older ledger, or remove its {suffix} file."
            )


def _first_byte(path: Path) -> bytes:
    if not path.is_file():
        return b""
    try:
        with path.open("rb") as file:
            return file.read(1)
    except FileNotFoundError:  # Another process just removed it.
        return b""


def connect_reading(path: Path) -> sqlite3.Connection:
    """Returns a read-only connection to a ledger file, after a check of it.

    If a process died in the middle of a commit, the commit is undone first.

    Raises:
        FileNotFoundError: There is no such file.
        LedgerFormatError: The file is not a ledger, truncated or corrupt.
        LedgerVersionError: The ledger has another version of the format.
        LedgerError: The file cannot be opened for another reason.
    """
    if not exists(path):
        raise FileNotFoundError(
            errno.ENOENT, os.strerror(errno.ENOENT), str(path)
        )
    if not path.is_file():
        raise LedgerFormatError(
            f"`path` must be a ledger file. Received: path={str(path)!r}, "
            "which is no file. Give the path of the file itself."
        )
    name = repr(str(path))
    try:
        _look(path)
        connection = _connect_reading(path)
        try:
            schema.check_marks(connection, name)
            schema.check_tables(connection, name)
            _check_pages(connection, path)
        except BaseException:
            connections.close(connection)
            raise
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    return connection


def connect_writing(path: Path) -> sqlite3.Connection:
    """Returns a connection that makes each commit durable.

    Raises:
        LedgerError: The journal belongs to an earlier state of the file.
        LedgerWriteError: The file cannot be written.
    """
    try:
        journal.check(path)
        if path.stat().st_nlink > 1:
            _remove_leftovers(path)
        connection = connections.connect(path, "mode=rw")
        try:
            (mode,) = connection.execute(
                f"PRAGMA journal_mode={_system.JOURNAL_MODE}"
            ).fetchone()
            if mode != _system.JOURNAL_MODE:
                raise sqlite3.OperationalError(f"its journal mode is {mode}")
            connection.execute("PRAGMA synchronous=EXTRA")
            connection.execute("PRAGMA fullfsync=ON")  # Only macOS has it.
            # So nothing is written before the journal is complete.
            connection.execute("PRAGMA cache_spill=OFF")
            # SQLite opens what it may not write for reading, and says so late.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"PRAGMA user_version={FORMAT_VERSION}")
            connection.execute("ROLLBACK")
        except BaseException:
            connections.close(connection)
            raise
    except (sqlite3.Error, OSError) as error:
        raise LedgerWriteError(
            f"The ledger {str(path)!r} cannot be opened for writing: {error}. "
            "Check the permissions of the file and of its folder, and whether "
            "another process holds it."
        ) from error
    return connection


def unreadable(path: Path | None, error: Exception) -> LedgerError:
    """Returns the ledger error for an error of SQLite or the system.

    A corrupt file gets another error than one that is locked or forbidden.
    """
    if isinstance(error, UnicodeDecodeError):
        return _corrupt(path, "a text column is not valid UTF-8")
    code = connections.code_of(error) if isinstance(error, sqlite3.Error) else 0
    if code == sqlite3.SQLITE_READONLY_ROLLBACK:
        return LedgerError(
            f"The ledger {str(path)!r} holds an unfinished commit, left by a "
            "process that died. The commit must be undone before the ledger "
            "can be read. Open it once in a process that may write the file "
            "and its folder, with PrivacyLedger.open(path).close()."
        )
    if code & 0xFF == sqlite3.SQLITE_NOTADB:
        return LedgerFormatError(
            f"The file {str(path)!r} is not a ledger. It was not changed."
        )
    if isinstance(error, (sqlite3.OperationalError, OSError)):
        return LedgerError(
            f"The ledger {str(path)!r} cannot be read: {error}. Check the "
            "permissions of the file and of its folder, and whether another "
            "process holds it."
        )
    return _corrupt(path, error)


def _look(path: Path) -> None:
    """Refuses a file that is not a ledger, and leaves no other file behind."""
    for suffix in ("-journal", "-wal"):
        beside = Path(f"{path}{suffix}")
        found = _stat(beside)
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise LedgerFormatError(
                f"The file {str(beside)!r} beside the ledger must be one that "
                "SQLite wrote. Received: another kind of file. Remove it."
            )
    connection = connections.connect(path, "mode=ro&immutable=1")
    try:
        schema.check_marks(connection, repr(str(path)))
    except sqlite3.DatabaseError as error:
        # While another process commits, the file may be shorter than it says.
        if connections.code_of(error) & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
    finally:
        connections.close(connection)
    wal = Path(f"{path}-wal")
    found = _stat(wal)
    if found is not None and found.st_size:
        raise LedgerFormatError(
            f"The ledger {str(path)!r} must not have a write-ahead log beside "
            f"it. Received: {str(wal)!r}, written by another program. Nothing "
            "was changed. Restore the ledger from a copy."
        )


def _stat(path: Path) -> os.stat_result | None:
    """Looks once: a process that commits may remove the file meanwhile."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _connect_reading(path: Path) -> sqlite3.Connection:
    try:
        return _connect_and_read(path)
    except sqlite3.OperationalError as error:
        if connections.code_of(error) != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise
        # Opening it for writing undoes the commit that was cut short.
        try:
            connections.close(connect_writing(path))
        except LedgerWriteError:
            raise error from None
        return _connect_and_read(path)


def _connect_and_read(path: Path) -> sqlite3.Connection:
    connection = connections.connect(path, "mode=ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    except BaseException:
        connections.close(connection)
        raise
    return connection


def _check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Raises unless every page is there and fits the others."""
    pages, page_size, answer = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "page_size", "integrity_check(1)")
    )
    size = path.stat().st_size
    if size < pages * page_size:
        raise _corrupt(path, f"{size} bytes of {pages * page_size}")
    if answer != "ok":
        raise _corrupt(path, answer)


def _corrupt(path: Path | None, reason: object) -> LedgerFormatError:
    return LedgerFormatError(
        f"The ledger {str(path)!r} is truncated or corrupt: {reason}. It was "
        "not changed. Restore it from a copy."
    )
