"""The places where ledgers are stored: files, and servers by their URL."""

import contextlib
import os
import sqlite3
import weakref
from pathlib import Path
from typing import Protocol

from keras_dp import _check
from keras_dp._override import override
from keras_dp.errors import LedgerError, LedgerWriteError
from keras_dp.ledger.places import connections, schema, storage
from keras_dp.ledger.places.handle import Handle

_SCHEMES = ("postgresql://", "postgres://")
_PUT_BACK = "Put the file back, and open the ledger again."


class Place(Protocol):
    """A place where a ledger is, or can be created: a file, or a schema.

    Its name, for messages, has no password. Its short name is that of the file
    without folder and suffix, or that of the schema.
    """

    name: str
    short_name: str

    def exists(self) -> bool:
        """Returns whether there is something at this place."""

    def create(self, header: str) -> None:
        """Creates a whole ledger, unless there is something at this place."""

    def open(self, *, writable: bool) -> Handle:
        """Returns a handle of the ledger, after a check of its tables."""


class FileHandle(Handle):
    """Reads and writes a ledger file, or a ledger in memory."""

    # Python, not SQLite, decodes the texts.
    errors = (sqlite3.Error, UnicodeDecodeError)

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path | None,
        *,
        writable: bool,
    ) -> None:
        """Takes over a connection that `storage` made."""
        super().__init__(
            path,
            None if path is None else str(path),
            writable=writable,
            writer=storage.writer(path),
        )
        self._connection = connection
        self._file = connections.identity(path) if path else None
        weakref.finalize(self, connections.close, connection)

    @override
    def check_tables(self, database: object) -> None:
        schema.check_tables(self._connection, repr(self.name))

    @override
    def _begin(self, *, writing: bool) -> sqlite3.Connection:
        if self.path and self._writable:
            storage.check_journal(self.path)
        self._connection.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
        return self._connection

    @override
    def _end_reading(self) -> None:
        self._connection.execute("COMMIT")

    @override
    def _commit(self) -> None:
        self._connection.execute("COMMIT")
        if self._went_away():
            raise LedgerWriteError(
                f"The ledger {self.name!r} was moved, removed or replaced "
                "while it was open. Nothing may be released that it does not "
                f"cover. {_PUT_BACK}"
            )

    @override
    def _may_have_committed(self, error: Exception) -> bool:
        # A reader held the file too long: the transaction is still open.
        return connections.code_of(error) & 0xFF != sqlite3.SQLITE_BUSY

    @override
    def _rollback(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    @override
    def _disconnect(self) -> None:
        connections.close(self._connection)

    @override
    def _unreadable(self, error: Exception) -> LedgerError:
        return storage.unreadable(self.path, error)

    @override
    def _remedy(self) -> str:
        if self._went_away():  # SQLite calls such a file read-only.
            return f"It was moved, removed or replaced. {_PUT_BACK}"
        return (
            "Check the disk, the folder and its permissions, and whether "
            "another process holds the file."
        )

    def _went_away(self) -> bool:
        """Returns whether the file at the path is another one, or is gone."""
        if self.path is None:
            return False
        return connections.identity(self.path) != self._file


class FilePlace:
    """A file; see `Place`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if _check.looks_like_url(path):
            raise LedgerError(
                "`path` must be the name of a file, or a URL that begins with "
                f"{_SCHEMES[0]!r}. Received: {_check.shown(path)}. Write the "
                "URL in this form, or give the file another name."
            )
        self._path = storage.absolute(path)
        self.name = str(self._path)
        self.short_name = Path(os.fspath(path)).stem

    def exists(self) -> bool:
        """See `Place.exists`."""
        return storage.exists(self._path)

    def create(self, header: str) -> None:
        """See `Place.create`."""
        storage.create(self._path, header)

    def open(self, *, writable: bool) -> Handle:
        """See `Place.open`."""
        connect = (
            storage.connect_writing if writable else storage.connect_reading
        )
        connection = connect(self._path)
        return FileHandle(connection, self._path, writable=writable)


def place_of(path: str | os.PathLike[str]) -> Place:
    """Returns the place that a path or a URL names."""
    if not isinstance(path, str) or not path.startswith(_SCHEMES):
        return FilePlace(path)
    try:
        from keras_dp.ledger.places.postgres import Schema
    except ImportError as error:
        raise LedgerError(
            "`path` must be a file, because psycopg 3 is not installed. "
            f"Received: the URL of a server ({error}). To use a server, "
            "install keras_dp[postgres]."
        ) from error
    return Schema(path)
