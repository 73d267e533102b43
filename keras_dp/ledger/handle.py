"""A connection with the rules by which one process may use it."""

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from keras_dp.errors import LedgerError, LedgerFormatError, LedgerWriteError
from keras_dp.ledger import connections, storage

_FORKED = (
    "The ledger was opened before this process was forked. Close it before the "
    "fork and open it in each process, or start processes with 'spawn'."
)


class Handle:
    """What a ledger reads and writes through, from any thread.

    Attributes:
        path: The file, `None` for a ledger in memory.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path | None,
        *,
        writable: bool,
    ) -> None:
        """Takes over a connection."""
        self.path = path
        self._connection: sqlite3.Connection | None = connection
        self._writable = writable
        self._files = connections.files(path) if path and writable else None
        self._process = os.getpid()
        self._lock = threading.RLock()
        weakref.finalize(self, connections.close, connection)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._connection is None

    def close(self) -> None:
        """Merges the write-ahead log into the file and lets go of it."""
        if self._process != os.getpid():
            return  # The parent's, as its lock is.
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is None:
                return
            if self._writable and self.path is not None:
                storage.merge_log(connection)
            connections.close(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lets several reads see one state, whatever others write."""
        # Before the lock, which a thread of the parent may hold for ever.
        if self._process != os.getpid():
            raise LedgerError(_FORKED)
        with self._lock:
            if self._connection is None:
                raise LedgerError("The ledger is closed. Open it again.")
            try:
                self._connection.execute("BEGIN")
                with _rollback_on_error(self._connection):
                    yield self._connection
                    self._connection.execute("COMMIT")
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                raise LedgerFormatError(
                    f"The ledger cannot be read: {error}"
                ) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Runs one transaction: durable at the end, or without a trace."""
        if self._process != os.getpid():
            raise LedgerWriteError(_FORKED)
        with self._lock:
            connection = self._connection
            if connection is None:
                raise LedgerWriteError("The ledger is closed. Open it again.")
            if not self._writable:
                raise LedgerWriteError(
                    "The ledger was opened for reading. Open it with mode='a'."
                )
            try:
                # Outside what rolls back: it may fail inside a transaction.
                connection.execute("BEGIN IMMEDIATE")
                with _rollback_on_error(connection):
                    yield connection
                    connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise LedgerWriteError(
                    f"The ledger could not be written: {error}. Nothing "
                    "may be released that it does not cover."
                ) from error
            self._check_files()

    def _check_files(self) -> None:
        if self.path and connections.files(self.path) != self._files:
            raise LedgerWriteError(
                f"The ledger {str(self.path)!r}, or a file beside it, was "
                "moved, removed or replaced while it was open. Nothing may be "
                "released that it does not cover. Open it again."
            )


@contextlib.contextmanager
def _rollback_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise
