"""A connection with the rules by which one process may use it."""

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from keras_dp.errors import LedgerError, LedgerWriteError
from keras_dp.ledger import connections, journal, log, storage

_FORKED = (
    "The ledger was opened before this process was forked. Close it before the "
    "fork and open it in each process, or start processes with 'spawn'."
)

_DOUBTFUL = (
    "A commit failed in a way that leaves open whether it happened. Open the "
    "ledger again: it holds the rounds as they were before the commit or after "
    "it, and covers what was released in either case."
)

_UNCHANGED = (
    "It holds what it held before. Check the disk, the folder and its "
    "permissions."
)


class Handle:
    """Reads and writes a ledger, from any thread of one process.

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
        self._has_failed = False
        self._file = connections.identity(path) if path else None
        self._writer = journal.writer(path)
        self._process = os.getpid()
        self._lock = threading.RLock()
        weakref.finalize(self, connections.close, connection)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._connection is None

    def close(self) -> None:
        """Lets go of the file."""
        if self._process != os.getpid():
            return  # The connection belongs to the parent process.
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connections.close(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lets several reads see one state, whatever others write.

        Raises:
            LedgerError: The ledger cannot be read from here or now.
            LedgerFormatError: It is corrupt.
        """
        # Before the lock, which a thread of the parent may hold for ever.
        if self._process != os.getpid():
            raise LedgerError(_FORKED)
        with self._lock:
            if self._connection is None:
                raise LedgerError("The ledger is closed. Open it again.")
            try:
                self._check_journal()
                self._connection.execute("BEGIN")
                with _rollback_on_error(self._connection):
                    yield self._connection
                    self._connection.execute("COMMIT")
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise storage.unreadable(self.path, error) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Runs one transaction: durable at the end, or without a trace.

        Raises:
            LedgerIntegrityError: The end of the ledger is not as it was
                written. Nothing was changed.
            LedgerWriteError: Nothing was changed; or the commit itself failed,
                and the message says that it may have happened.
        """
        if self._process != os.getpid():
            raise LedgerWriteError(_FORKED)
        with self._lock:
            connection = self._writable_connection()
            try:
                self._check_journal()
                # Outside the block that rolls back: a nested call fails here.
                connection.execute("BEGIN IMMEDIATE")
                with _rollback_on_error(connection):
                    log.begin(connection)
                    yield connection
                    log.finish(connection, self._writer)
                    self._commit(connection)
            except sqlite3.Error as error:
                raise self._unwritten(error) from error
            self._check_place()

    def _writable_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise LedgerWriteError("The ledger is closed. Open it again.")
        if not self._writable:
            raise LedgerWriteError(
                "The ledger was opened for reading. Open it with mode='a'."
            )
        if self._has_failed:
            raise LedgerWriteError(_DOUBTFUL)
        return self._connection

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # A reader held the file too long: the transaction is still open.
            busy = connections.code_of(error) & 0xFF == sqlite3.SQLITE_BUSY
            self._has_failed = not busy
            raise

    def _unwritten(self, error: sqlite3.Error) -> LedgerWriteError:
        state = _DOUBTFUL if self._has_failed else _UNCHANGED
        return LedgerWriteError(
            f"The ledger {str(self.path)!r} could not be written: {error}. "
            f"Nothing may be released that it does not cover. {state}"
        )

    def _check_journal(self) -> None:
        if self.path and self._writable:
            journal.check(self.path)

    def _check_place(self) -> None:
        if self.path and connections.identity(self.path) != self._file:
            raise LedgerWriteError(
                f"The ledger {str(self.path)!r} was moved, removed or replaced "
                "while it was open. Nothing may be released that it does not "
                "cover. Put the file back, and open it again."
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
