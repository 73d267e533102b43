"""Ledgers whose process died, or whose disk failed, for tests of both."""

import os
import resource
import signal
import sqlite3
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
from keras_dp.ledger.places import connections, storage
from keras_dp.ledger.places.place import FileHandle

# Rounds of the commit that is cut short, and a text that needs new pages.
CUT = 7
CUT_QUERIES = [GaussianSum("long " * 2000, 1.0, 4.0)]


def make(path: Path, rows: int = 5) -> bytes:
    """Creates a ledger of `rows` rounds in as many rows, several pages."""
    with PrivacyLedger.open(path, dataset="d") as ledger:
        for row in range(rows):
            name = f"{row} {'long ' * 100}"
            ledger.record(FullDataset(), [GaussianSum(name, 1.0, row)])
    return path.read_bytes()


def start_fork(act: Callable[[], object]) -> int:
    """Returns the id of a forked process, which ends when `act` does.

    Its exit code is 0 if `act` returns something true.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About threads, in 3.12 and later.
        child = os.fork()
    if child == 0:
        is_good = False
        try:
            is_good = bool(act())
        finally:
            os._exit(0 if is_good else 1)
    return child


def in_a_fork(act: Callable[[], object]) -> int:
    """Returns how a forked process ends: its exit code, or minus its signal."""
    status = os.waitpid(start_fork(act), 0)[1]
    return os.waitstatus_to_exitcode(status)


def die_in_commit(path: Path) -> bytes:
    """Kills a process while it commits `CUT` rounds.

    The file may not grow: the kernel kills the process when it has changed the
    pages that were there, and writes the first new one.

    Returns:
        The file as it was before.
    """
    before = path.read_bytes()

    def die() -> None:
        ledger = PrivacyLedger.open(path)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), len(before)))
        ledger.record(FullDataset(), CUT_QUERIES, count=CUT)

    assert in_a_fork(die) == -signal.SIGXFSZ
    assert path.read_bytes() != before
    return before


class FaultyConnection:
    """Passes everything on, but fails at statements of one kind.

    Attributes:
        start: Statements that begin so fail; empty for none.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Takes over a connection that works."""
        self.start = ""
        self._connection = connection

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def execute(self, statement: str, *arguments: object) -> object:
        """Fails, or executes the statement."""
        if self.start and statement.startswith(self.start):
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *arguments)


def open_faulty(path: Path) -> tuple[PrivacyLedger, FaultyConnection]:
    """Returns a ledger of an existing file, and what makes it fail."""
    faulty = FaultyConnection(storage.connect_writing(path))
    connections.adopt(faulty)
    return PrivacyLedger(FileHandle(faulty, path, writable=True)), faulty


def run_together(act: Callable[[], object], threads: int = 4) -> None:
    """Runs a function in several threads, and waits for all of them."""
    started = [threading.Thread(target=act) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
