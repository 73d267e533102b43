"""Writes that fail, and handles that must not write: nothing is reserved."""

import gc
import os
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_dp.errors import LedgerError, LedgerWriteError
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger, connections

QUERIES = [GaussianSum("gradients", 1.0, 4.0)]
_APPEND = """
import sys
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
with PrivacyLedger.open(sys.argv[1]) as ledger:
    ledger.record(FullDataset(), [GaussianSum("other", 1.0, 4.0)])
"""
_COUNT = """
import sys
from keras_dp.ledger import PrivacyLedger
with PrivacyLedger.open(sys.argv[1], mode="r") as ledger:
    print(len(ledger))
"""


@pytest.fixture
def ledger(tmp_path):
    with PrivacyLedger.open(tmp_path / "l.db", dataset="d") as opened:
        opened.record(FullDataset(), QUERIES, count=5)
        yield opened


def in_another_process(script: str, path: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", script, path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def in_a_fork(act: Callable[[], bool]) -> bool:
    """Returns what `act` returns in a forked process; raising is false."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of threads: 3.12 and later.
        child = os.fork()
    if child == 0:
        is_good = False
        try:
            is_good = act()
        finally:
            os._exit(0 if is_good else 1)
    return os.waitpid(child, 0)[1] == 0


def refuses(ledger: PrivacyLedger, block=None) -> bool:
    acts = [
        lambda: ledger.record(FullDataset(), QUERIES),
        lambda: ledger.reserve(FullDataset(), QUERIES, count=10),
    ]
    if block is not None:
        acts.append(lambda: block.settle(used=1))
        acts.append(lambda: block.renew(used=1, count=10))
    for act in acts:
        try:
            act()
        except LedgerWriteError:
            continue
        return False
    return True


class FailingConnection:
    """Passes everything on, but fails at statements of one kind."""

    def __init__(self, connection: sqlite3.Connection, start: str) -> None:
        self._connection, self._start = connection, start

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def execute(self, statement: str, *arguments: object) -> object:
        if statement.startswith(self._start):
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *arguments)


@pytest.mark.parametrize("start", ["BEGIN", "INSERT", "SELECT", "COMMIT"])
def test_a_failing_statement_reserves_nothing(ledger, start: str) -> None:
    block = ledger.reserve(FullDataset(), QUERIES, count=3)
    before = ledger.verify()
    handle = ledger._handle
    connection = handle._connection

    handle._connection = FailingConnection(connection, start)
    is_refused = refuses(ledger, block)
    handle._connection = connection

    assert is_refused
    assert ledger.verify() == before
    block.settle(used=2)
    assert len(ledger) == 7


def test_a_full_disk_reserves_nothing(ledger) -> None:
    connection = ledger._handle._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages}")
    before = ledger.verify()

    with pytest.raises(LedgerWriteError, match="full"):
        ledger.record(FullDataset(), [GaussianSum("g" * 10_000, 1.0, 1.0)])
    with pytest.raises(LedgerWriteError, match="full"):
        ledger.reserve(FullDataset(), [GaussianSum("g" * 10_000, 1.0, 1.0)])

    assert ledger.verify() == before


def test_a_locked_ledger_reserves_nothing(ledger) -> None:
    ledger._handle._connection.execute("PRAGMA busy_timeout=0")
    other = sqlite3.connect(ledger.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    is_refused = refuses(ledger)
    other.execute("ROLLBACK")
    other.close()

    assert is_refused
    assert len(ledger) == 5


def test_a_locked_ledger_is_not_opened_for_writing(ledger, monkeypatch) -> None:
    monkeypatch.setattr(connections, "_BUSY_SECONDS", 0.0)
    other = sqlite3.connect(ledger.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(LedgerWriteError, match="opened for writing"):
        PrivacyLedger.open(ledger.path)
    with PrivacyLedger.open(ledger.path, mode="r") as reader:
        assert len(reader) == 5
    other.close()


def test_commits_are_flushed_to_the_disk(ledger) -> None:
    connection = ledger._handle._connection

    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_forked_process_does_not_write_to_the_handle(ledger) -> None:
    block = ledger.reserve(FullDataset(), QUERIES, count=3)

    assert in_a_fork(lambda: refuses(ledger, block))
    assert ledger.verify().rounds == 8


def test_a_forked_process_does_not_read_from_the_handle(ledger) -> None:
    def reads() -> bool:
        try:
            return len(ledger) < 0
        except LedgerError:
            return True

    assert in_a_fork(reads)


def test_a_handle_in_memory_is_not_inherited() -> None:
    ledger = PrivacyLedger.in_memory(dataset="d")

    assert in_a_fork(lambda: refuses(ledger))


def test_a_fork_does_not_wait_for_threads_of_its_parent(ledger) -> None:
    """A thread holds the handle while another one forks."""
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with ledger._handle.reading():
            inside.set()
            leave.wait()

    def closes() -> bool:
        ledger.close()
        return refuses(ledger)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    is_good = in_a_fork(closes)
    leave.set()
    thread.join()

    assert is_good


def test_a_file_open_in_the_parent_is_not_opened_in_a_fork(ledger) -> None:
    """SQLite would believe that it has the locks of its parent."""

    def is_refused() -> bool:
        for mode in ("a", "r"):
            try:
                PrivacyLedger.open(ledger.path, mode=mode)
            except LedgerError as error:
                if "forked" in str(error):
                    continue
            return False
        return True

    assert in_a_fork(is_refused)


def test_a_file_closed_before_the_fork_is_opened_in_it(ledger) -> None:
    ledger.close()

    def appends() -> bool:
        with PrivacyLedger.open(ledger.path) as own:
            own.record(FullDataset(), QUERIES)
            return len(own) == 6

    assert in_a_fork(appends)


def test_dropping_a_handle_in_a_fork_does_not_close_it(ledger) -> None:
    connection = ledger._handle._connection

    def is_kept() -> bool:
        connections.close(connection)
        return connection.execute("SELECT 1").fetchone() == (1,)

    assert in_a_fork(is_kept)


def test_opening_a_ledger_twice_keeps_its_locks(ledger) -> None:
    """POSIX drops them if the process closes any descriptor of the file.

    Then the other process below would take the ledger for unused and delete
    its write-ahead log, and what follows would be lost.
    """
    PrivacyLedger.open(ledger.path, mode="r").close()
    PrivacyLedger.open(ledger.path, mode="a").close()

    in_another_process(_APPEND, ledger.path)
    ledger.record(FullDataset(), QUERIES, count=100)

    assert in_another_process(_COUNT, ledger.path) == "106"


def test_a_log_deleted_by_others_stops_the_writer(ledger) -> None:
    """Reading the file in this process drops the locks, which is noticed."""
    ledger.path.read_bytes()
    in_another_process(_APPEND, ledger.path)

    with pytest.raises(LedgerWriteError, match="moved, removed or replaced"):
        ledger.record(FullDataset(), QUERIES, count=100)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("act", ["remove", "move", "replace"])
def test_files_that_went_away_stop_the_writer(ledger, suffix, act) -> None:
    file = Path(f"{ledger.path}{suffix}")
    if act == "remove":
        file.unlink()
    else:
        file.rename(f"{file}.old")
    if act == "replace":
        file.write_bytes(Path(f"{file}.old").read_bytes())

    assert refuses(ledger)


def test_a_reader_in_another_process_sees_what_is_committed(ledger) -> None:
    block = ledger.reserve(FullDataset(), QUERIES, count=10)
    reserved = in_another_process(_COUNT, ledger.path)
    block.settle(used=1)

    assert reserved == "15"
    assert in_another_process(_COUNT, ledger.path) == "6"


def test_an_open_reader_sees_later_rows(ledger) -> None:
    with PrivacyLedger.open(ledger.path, mode="r") as reader:
        ledger.record(FullDataset(), QUERIES)

        assert len(reader) == 6


def test_forgotten_ledgers_are_closed_without_a_warning(tmp_path) -> None:
    """Python 3.13 warns of connections that nobody closed."""
    gc.collect()  # Of what other tests forgot.
    before = len(connections._open)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivacyLedger.in_memory(dataset="d")
        PrivacyLedger.open(tmp_path / "l.db", dataset="d")
        gc.collect()

    assert len(connections._open) == before


def test_refused_files_leave_no_connection(tmp_path) -> None:
    before = len(connections._open)
    (tmp_path / "text").write_text("text" * 999)
    PrivacyLedger.open(tmp_path / "l.db", dataset="d").close()

    with pytest.raises(LedgerError):
        PrivacyLedger.open(tmp_path / "text")
    with pytest.raises(ValueError, match="`dataset`"):
        PrivacyLedger.open(tmp_path / "l.db", dataset="other")

    assert len(connections._open) == before
