"""The rollback journal, which a process leaves that dies in a commit.

SQLite copies the pages that a commit is about to change to `FILE-journal`. It
then changes them in the file, and deletes the journal, or cuts it to nothing
(`_system.JOURNAL_MODE`). That is the moment of the commit. If the process dies
before, the next process that opens the file puts the copies back. This loses no
round: a round is released only after its commit.

SQLite finds the journal by the name of the file. If a file has two names, a
commit may be cut short under one name, and later commits may follow under the
other. The old copies, put back, would then undo the later commits. So `check`
compares two things: the numbers of commits in the journal and in the file, and
the names under which the last commit was made and the file is opened now.
"""

import hashlib
import os
import sqlite3
import struct
import time
from pathlib import Path
from typing import BinaryIO, NamedTuple

from keras_dp.errors import LedgerError, LedgerIntegrityError
from keras_dp.ledger.places import connections
from keras_dp.ledger.rows import log

# A journal is a magic number, five numbers, and records of a page number, a
# page and a checksum: https://www.sqlite.org/fileformat.html, section 3.
_MAGIC = bytes.fromhex("d9d505f920a163d7")
_HEADER = struct.Struct(">8s5I")
_NUMBER = struct.Struct(">I")
_COUNTER_PLACE = 24
_SMALLEST_FILE = 512
# Longer than it takes to hand the pages of a commit to the kernel.
_WAIT_SECONDS = 0.05


class _Journal(NamedTuple):
    """The state of the file before the commit, as the journal holds it.

    Attributes:
        nonce: A random number that no other journal has.
        pages: The number of pages in the file.
        counter: The number of commits to the file so far. `None` if the
            journal has no copy of the first page: then the commit had not yet
            changed the file.
    """

    nonce: int
    pages: int
    counter: int | None


def path_beside(path: Path) -> Path:
    """Returns where SQLite keeps the journal of a file."""
    return Path(f"{path}-journal")


def writer(path: Path | None) -> str:
    """Returns a short hash of a file's name, which each commit writes."""
    name = b"" if path is None else os.fsencode(path)
    return hashlib.sha256(name).hexdigest()[:16]


def check(path: Path) -> None:
    """Raises if SQLite would undo more than the unfinished commit.

    Call it before every operation that could put a journal back.

    Raises:
        LedgerError: The journal belongs to an earlier state of the file, or is
            not one that a ledger leaves.
    """
    misfit = _misfit(path)
    if misfit is None:
        return
    # Another process may have been committing when the two were compared.
    time.sleep(_WAIT_SECONDS)
    if _misfit(path) == misfit:
        raise LedgerError(
            f"The journal {str(path_beside(path))!r} must belong to the last "
            "commit of the ledger. Received: the journal of an earlier one, "
            "left by a process that died; the ledger was written since, under "
            "another name or from a copy. Move the journal away and open the "
            "ledger again, which then checks every row."
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
        with path_beside(path).open("rb") as file:
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
        f"The journal {str(path_beside(path))!r} must be one that a ledger "
        f"left. Received: {reason}. Nothing was changed. Do not use the file "
        "unless you know where it comes from."
    )
