"""The rules by which one process uses a ledger, wherever it is stored."""

import abc
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NoReturn

from keras_dp.errors import LedgerError, LedgerWriteError
from keras_dp.ledger.rows import log

_CLOSED = "The ledger is closed. Open it again."

_FORKED = (
    "The ledger was opened before this process was forked. Close it before the "
    "fork and open it in each process, or start processes with 'spawn'."
)

_NESTED = (
    "The ledger is in the middle of another call of this thread. Nothing was "
    "changed. Do not call the ledger from a signal handler, or in the middle "
    "of a transaction."
)

_DOUBTFUL = (
    "A commit failed in a way that leaves open whether it happened. Open the "
    "ledger again. It holds the rounds either as before the commit or as after "
    "it; in both cases it covers everything that was released."
)


class Handle(abc.ABC):
    """Reads and writes a ledger, from any thread of one process.

    A subclass knows one kind of storage: it begins, commits and undoes
    transactions. This class makes sure that each is complete, and that no two
    of them overlap. The path and the name are `None` in memory. The name, a
    path or a URL, holds no password.
    """

    # The errors of the storage, which become errors of the ledger.
    errors: ClassVar[tuple[type[Exception], ...]]

    def __init__(
        self,
        path: Path | None,
        name: str | None,
        *,
        writable: bool,
        writer: str,
    ) -> None:
        """Takes what each commit writes as `writer`; see `storage`."""
        self.path, self.name = path, name
        self._writable, self._writer = writable, writer
        self._is_closed = self._is_inside = self._has_failed = False
        self._process = os.getpid()
        self._lock = threading.RLock()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A ledger must be opened by each process that uses it. Received: "
            "one that is copied or pickled. Pass on its name, and open it "
            "there."
        )

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def close(self) -> None:
        """Closes the connection, in the process that opened it."""
        if self._process != os.getpid():
            return  # The connection belongs to the parent process.
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._disconnect()

    @contextlib.contextmanager
    def reading(self) -> Iterator[log.Database]:
        """Lets several reads see one state, although others may write."""
        # Before the lock, which a thread of the parent may hold for ever.
        if self._process != os.getpid():
            raise LedgerError(_FORKED)
        with self._lock:
            if self._is_closed:
                raise LedgerError(_CLOSED)
            if self._is_inside:
                raise LedgerError(_NESTED)
            try:
                with self._inside(writing=False) as database:
                    yield database
                    self._end_reading()
            except self.errors as error:
                raise self._unreadable(error) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[log.Database]:
        """Runs one transaction: all its changes are durable, or none is made.

        If the commit itself failed, the error says that the changes may have
        been made. After any other error nothing was changed.
        """
        if self._process != os.getpid():
            raise LedgerWriteError(_FORKED)
        with self._lock:
            self._check_writable()
            try:
                with self._inside(writing=True) as database:
                    log.begin(database)
                    yield database
                    log.finish(database, self._writer)
                    self._commit_or_fail()
            except self.errors as error:
                raise self._unwritten(error) from error

    @abc.abstractmethod
    def check_tables(self, database: log.Database) -> None:
        """Raises unless the ledger has its own tables and nothing else.

        Another table, a view, a trigger or a changed table is refused.
        """

    @abc.abstractmethod
    def _begin(self, *, writing: bool) -> log.Database:
        """Begins a transaction; only one process at a time can write."""

    @abc.abstractmethod
    def _end_reading(self) -> None:
        """Ends a transaction that has changed nothing."""

    @abc.abstractmethod
    def _commit(self) -> None:
        """Commits the transaction, and returns when it is durable.

        It raises if the ledger was moved or replaced meanwhile.
        """

    @abc.abstractmethod
    def _may_have_committed(self, error: Exception) -> bool:
        """Returns whether a commit may have happened in spite of an error."""

    @abc.abstractmethod
    def _rollback(self) -> None:
        """Undoes the transaction, if one is open. It does not raise."""

    @abc.abstractmethod
    def _disconnect(self) -> None:
        """Closes the connection."""

    @abc.abstractmethod
    def _unreadable(self, error: Exception) -> LedgerError:
        """Returns the ledger error to raise for an error of the storage."""

    @abc.abstractmethod
    def _remedy(self) -> str:
        """Returns what to do about a write that failed."""

    def _check_writable(self) -> None:
        if self._is_closed:
            raise LedgerWriteError(_CLOSED)
        if not self._writable:
            raise LedgerWriteError(
                "The ledger must be open for writing. Received: a ledger that "
                "was opened with mode='r'. Open it with mode='a'."
            )
        if self._has_failed:
            raise LedgerWriteError(_DOUBTFUL)
        if self._is_inside:
            raise LedgerWriteError(_NESTED)

    @contextlib.contextmanager
    def _inside(self, *, writing: bool) -> Iterator[log.Database]:
        try:
            self._is_inside = True
            yield self._begin(writing=writing)
        except BaseException:
            self._rollback()
            raise
        finally:
            self._is_inside = False

    def _commit_or_fail(self) -> None:
        try:
            self._commit()
        except self.errors as error:
            self._has_failed = self._may_have_committed(error)
            raise

    def _unwritten(self, error: Exception) -> LedgerWriteError:
        state = f"This write changed nothing. {self._remedy()}"
        return LedgerWriteError(
            f"The ledger {self.name!r} could not be written: "
            f"{' '.join(str(error).split())}. Nothing may be released that it "
            f"does not cover. {_DOUBTFUL if self._has_failed else state}"
        )
