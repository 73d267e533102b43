"""A ledger in SQLite: in a file, or in memory."""

import contextlib
import sqlite3
import weakref
from pathlib import Path

from keras_dp._override import override
from keras_dp.errors import LedgerError, LedgerWriteError
from keras_dp.ledger.places import connections, journal, schema, storage
from keras_dp.ledger.places.handle import Handle

_PUT_BACK = "Put the file back, and open the ledger again."


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
        """Takes over a connection.

        Args:
            connection: A connection that `ledger.storage` made.
            path: The file; `None` for a ledger in memory.
            writable: Whether the connection may write.
        """
        super().__init__(
            path,
            None if path is None else str(path),
            writable=writable,
            writer=journal.writer(path),
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
            journal.check(self.path)
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
        return "Check the disk, the folder and its permissions."

    def _went_away(self) -> bool:
        """Returns whether the file at the path is another one, or is gone."""
        if self.path is None:
            return False
        return connections.identity(self.path) != self._file
