"""The file of a ledger: made whole or not at all, checked before a change.

The file is SQLite with a rollback journal and `synchronous=EXTRA`. So a
transaction that was committed is in the file itself, and survives the death of
the process and of the machine. A process that dies in the middle of a commit
leaves a rollback journal. A process that has a ledger open must not open its
file in another way, not even to copy it; see `connections.py`.

*The journal.* SQLite copies the pages that a commit is about to change to
`FILE-journal`. It then changes them in the file, and deletes the journal, or
cuts it to nothing (`_system.JOURNAL_MODE`). That is the moment of the commit.
If the process dies before, the next process that opens the file puts the copies
back. This loses no round: a round is released only after its commit.

SQLite finds the journal by the name of the file. If a file has two names, a
commit may be cut short under one name, and later commits may follow under the
other. The old copies, put back, would then undo the later commits.
So `check_journal` compares two things: the numbers of commits in the journal
and in the file, and the names under which the last commit was made and the file
is opened now.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import sqlite3
import stat
import struct
import time
from pathlib import Path
from typing import BinaryIO, NamedTuple

from keras_dp import _check, _system
from keras_dp.errors import (
    LedgerError,
    LedgerFormatError,
    LedgerIntegrityError,
    LedgerWriteError,
)
from keras_dp.ledger.places import connections, schema
from keras_dp.ledger.rows import log
from keras_dp.ledger.rows.header import FORMAT_VERSION

# A journal is a magic number, five numbers, and records of a page number, a
# page and a checksum: https://www.sqlite.org/fileformat.html, section 3.
_MAGIC = bytes.fromhex("d9d505f920a163d7")
_HEADER = struct.Struct(">8s5I")
_NUMBER = struct.Struct(">I")
_COUNTER_PLACE = 24
_SMALLEST_FILE = 512
# Longer than it takes to hand the pages of a commit to the kernel.
_WAIT_SECONDS = 0.05
# Another process that creates the same ledger may remove what this one is
# about to publish. One of them succeeds, and the others find the ledger.
_ATTEMPTS = 100


class _Journal(NamedTuple):
    """The state of the file before the commit, as the journal holds it.

    The nonce is a random number that no other journal has. The counter is the
    number of commits to the file so far. It is `None` if the journal has no
    copy of the first page: then the commit had not yet changed the file.
    """

    nonce: int
    pages: int
    counter: int | None


def journal_beside(path: Path) -> Path:
    """Returns where SQLite keeps the journal of a file."""
    return Path(f"{path}-journal")


def writer(path: Path | None) -> str:
    """Returns a short hash of a file's name, which each commit writes."""
    name = b"" if path is None else os.fsencode(path)
    return hashlib.sha256(name).hexdigest()[:16]


def check_journal(path: Path) -> None:
    """Raises if SQLite would undo more than the unfinished commit.

    Call it before every operation that could put a journal back. A journal of
    an earlier state of the file is refused, and one that no ledger leaves.
    """
    misfit = _misfit(path)
    if misfit is None:
        return
    # Another process may have been committing when the two were compared.
    time.sleep(_WAIT_SECONDS)
    if _misfit(path) == misfit:
        raise LedgerError(
            f"The journal {str(journal_beside(path))!r} must belong to the "
            "last commit of the ledger. Received: the journal of an earlier "
            "one, left by a process that died; the ledger was written since, "
            "under another name or from a copy. Move the journal away and open "
            "the ledger again, which then checks every row."
        )


def _misfit(path: Path) -> _Journal | None:
    """Returns the journal if it belongs to an earlier state of the file."""
    journal = _read(path)
    return None if journal is None or _fits(journal, path) else journal


def _fits(journal: _Journal, path: Path) -> bool:
    connection = connections.connect(path, "mode=ro&immutable=1")
    try:
        try:
            content = connection.serialize()
        except sqlite3.Error:
            return True  # The file shall grow, and has not grown yet.
        if len(content) < _SMALLEST_FILE:
            return True  # There is nothing to lose.
        page_size = int.from_bytes(content[16:18]) or 1
        if journal.counter is None:
            return len(content) == journal.pages * page_size
        (counter,) = _NUMBER.unpack_from(content, _COUNTER_PLACE)
        if counter == journal.counter:
            return True  # Nothing was written yet.
        if counter != (journal.counter + 1) % 2**32:
            return False
        try:
            log.begin(connection)
        except (LedgerIntegrityError, sqlite3.Error, UnicodeDecodeError):
            return True  # Half of the commit was written.
        return log.meta(connection).get("writer") == writer(path)
    finally:
        connections.close(connection)


def _read(path: Path) -> _Journal | None:
    """Returns the journal beside a file, if SQLite would put it back."""
    try:
        with journal_beside(path).open("rb") as file:
            return _parsed(file, path)
    except OSError:
        return None  # There is none, or SQLite cannot read it either.


def _parsed(file: BinaryIO, path: Path) -> _Journal | None:
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    magic, _, nonce, pages, sector, page_size = _HEADER.unpack(header)
    if magic != _MAGIC:
        return None  # It was not complete: the file is unchanged.
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - len(_MAGIC)))
    if file.read() == _MAGIC:
        raise _foreign(path, "it names another file, which would be removed")
    if not 512 <= page_size <= 2**16:
        raise _foreign(path, f"it has pages of {page_size} bytes")
    for place in range(sector, end, page_size + 2 * _NUMBER.size):
        file.seek(place)
        record = file.read(_NUMBER.size + page_size)
        if len(record) == _NUMBER.size + page_size:
            (number,) = _NUMBER.unpack_from(record)
            if number == 1:
                (counter,) = _NUMBER.unpack_from(
                    record, _NUMBER.size + _COUNTER_PLACE
                )
                return _Journal(nonce, pages, counter)
    return _Journal(nonce, pages, None)


def _foreign(path: Path, reason: str) -> LedgerError:
    return LedgerError(
        f"The journal {str(journal_beside(path))!r} must be one that a ledger "
        f"left. Received: {reason}. Nothing was changed. Do not use the file "
        "unless you know where it comes from."
    )


def absolute(path: object) -> Path:
    """Returns an absolute path without symbolic links."""
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
    """Returns whether there is a file, or something else, at the path."""
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
    """Returns a connection that makes each commit durable."""
    try:
        check_journal(path)
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
