"""Writes that fail, and handles that must not write: nothing is reserved."""

import contextlib
import copy
import gc
import pickle
import sqlite3
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from keras_dp.errors import LedgerError, LedgerWriteError
from keras_dp.ledger import (
    Account,
    Charge,
    FullDataset,
    GaussianSum,
    PrivacyLedger,
    Round,
)
from keras_dp.ledger.places import connections, storage
from keras_dp.ledger.places.place import FileHandle
from tests.ledger_faults import in_a_fork, open_faulty
from tests.paying import paying

QUERIES = [GaussianSum("gradients", 1.0, 4.0)]
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


@pytest.fixture
def path(ledger) -> Path:
    """A ledger of 5 rounds that no one has open."""
    ledger.close()
    return ledger.path


def in_another_process(script: str, path: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", script, path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def open_connections() -> int:
    return sum(
        isinstance(found, sqlite3.Connection) for found in gc.get_objects()
    )


def refuses(ledger: PrivacyLedger, run=None) -> bool:
    acts = [
        lambda: ledger.record(FullDataset(), QUERIES),
        lambda: ledger.start_run("a"),
        lambda: ledger.seal(),
        lambda: ledger.open_account(Account("all", (9,), "{}")),
    ]
    if run is not None:
        step = Round(FullDataset(), QUERIES)
        acts += [
            lambda: run.settle(used=1),
            lambda: run.cover(step, 10),
            lambda: run.plan([(step, 3)]),
            lambda: run.record(FullDataset(), QUERIES),
            lambda: run.cover(step),
            run.finish,
        ]
    for act in acts:
        with pytest.raises(LedgerWriteError):
            act()
    return True


@pytest.mark.parametrize("is_paid", [False, True])
@pytest.mark.parametrize(
    "start", ["BEGIN", "INSERT", "SELECT", "UPDATE", "COMMIT"]
)
def test_a_failing_statement_changes_nothing(path, start, is_paid) -> None:
    ledger, faulty = open_faulty(path)
    run = ledger.start_run("a")
    if is_paid:
        account = ledger.open_account(Account("some", (9,), "{}"))
        run = paying(ledger, "some", Charge(account.number, ((0, 1),)))
    run.cover(Round(FullDataset(), QUERIES), 3)
    before = ledger.verify(), ledger.runs, ledger.accounts

    faulty.start = start
    is_refused = refuses(ledger, run)
    faulty.start = ""

    assert is_refused
    assert (ledger.verify(), ledger.runs, ledger.accounts) == before


@pytest.mark.parametrize("start", ["BEGIN", "INSERT", "SELECT"])
def test_a_statement_that_failed_may_be_tried_again(path, start: str) -> None:
    ledger, faulty = open_faulty(path)
    block = ledger.start_run("a")
    block.cover(Round(FullDataset(), QUERIES), 3)

    faulty.start = start
    with pytest.raises(LedgerWriteError, match="changed nothing"):
        block.settle(used=2)
    faulty.start = ""
    block.settle(used=2)

    assert len(ledger) == 7


def test_a_commit_that_failed_may_have_happened(path) -> None:
    """The handle writes no more, so that no other block is settled for it."""
    ledger, faulty = open_faulty(path)
    block = ledger.start_run("a")
    block.cover(Round(FullDataset(), QUERIES), 3)

    faulty.start = "COMMIT"
    with pytest.raises(LedgerWriteError, match="open whether it happened"):
        block.settle(used=2)
    faulty.start = ""

    for act in (
        lambda: block.settle(used=2),
        lambda: block.cover(Round(FullDataset(), QUERIES), 3),
        lambda: ledger.record(FullDataset(), QUERIES),
    ):
        with pytest.raises(LedgerWriteError, match="Open the ledger again"):
            act()
    with PrivacyLedger.open(path) as again:
        assert len(again) == 8


def test_a_commit_that_readers_held_up_did_not_happen(path) -> None:
    connection = storage.connect_writing(path)
    connection.execute("PRAGMA busy_timeout=0")
    ledger = PrivacyLedger(FileHandle(connection, path, writable=True))
    block = ledger.start_run("a")
    block.cover(Round(FullDataset(), QUERIES), 3)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM log").fetchall()

    with pytest.raises(LedgerWriteError, match="changed nothing"):
        block.settle(used=2)
    reader.execute("COMMIT")
    reader.close()

    assert len(ledger) == 8
    block.settle(used=2)
    assert len(ledger) == 7
    ledger.close()


def test_a_full_disk_reserves_nothing(path) -> None:
    connection = storage.connect_writing(path)
    ledger = PrivacyLedger(FileHandle(connection, path, writable=True))
    run = ledger.start_run("a")
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages}")
    before = ledger.verify()

    with pytest.raises(LedgerWriteError, match="full"):
        ledger.record(FullDataset(), [GaussianSum("g" * 10_000, 1.0, 1.0)])
    with pytest.raises(LedgerWriteError, match="full"):
        run.cover(Round(FullDataset(), [GaussianSum("g" * 10_000, 1.0, 1.0)]))
    for act in (
        lambda: ledger.start_run("a" * 10_000),
        lambda: ledger.seal("a" * 10_000),
        lambda: ledger.open_account(Account("a" * 10_000, (9,), "{}")),
    ):
        with pytest.raises(LedgerWriteError, match="full"):
            act()

    assert ledger.verify() == before


def test_a_locked_ledger_reserves_nothing(path, monkeypatch) -> None:
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.0)
    ledger = PrivacyLedger.open(path)
    other = sqlite3.connect(ledger.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    is_refused = refuses(ledger)
    other.execute("ROLLBACK")
    other.close()

    assert is_refused
    assert len(ledger) == 5


def test_a_locked_ledger_is_not_opened_for_writing(ledger, monkeypatch) -> None:
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.0)
    other = sqlite3.connect(ledger.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(LedgerWriteError, match="opened for writing"):
        PrivacyLedger.open(ledger.path)
    with PrivacyLedger.open(ledger.path, mode="r") as reader:
        assert len(reader) == 5
    other.close()


def test_a_forked_process_does_not_write_to_the_handle(ledger) -> None:
    block = ledger.start_run("a")
    block.cover(Round(FullDataset(), QUERIES), 3)

    assert in_a_fork(lambda: refuses(ledger, block)) == 0
    assert ledger.verify().rounds == 8


def test_a_forked_process_does_not_read_from_the_handle(ledger) -> None:
    def reads() -> bool:
        try:
            return len(ledger) < 0
        except LedgerError:
            return True

    assert in_a_fork(reads) == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("of", [lambda x: x, lambda x: x.start_run("a")])
def test_a_ledger_is_not_copied(ledger, copied, of) -> None:
    with pytest.raises(TypeError, match="opened by each process"):
        copied(of(ledger))


def test_a_handle_in_memory_is_not_inherited() -> None:
    ledger = PrivacyLedger.in_memory(dataset="d")

    assert in_a_fork(lambda: refuses(ledger)) == 0


def test_a_fork_does_not_wait_for_threads_of_its_parent(path) -> None:
    """A thread holds the handle while another one forks."""
    inside, leave = threading.Event(), threading.Event()
    handle = FileHandle(storage.connect_writing(path), path, writable=True)
    ledger = PrivacyLedger(handle)

    def hold() -> None:
        with handle.reading():
            inside.set()
            leave.wait()

    def closes() -> bool:
        ledger.close()
        return refuses(ledger)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    is_good = in_a_fork(closes) == 0
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

    assert in_a_fork(is_refused) == 0


def test_dropping_a_handle_in_a_fork_does_not_close_it(path) -> None:
    connection = storage.connect_writing(path)

    def is_kept() -> bool:
        connections.close(connection)
        return connection.execute("SELECT 1").fetchone() == (1,)

    assert in_a_fork(is_kept) == 0
    connections.close(connection)


def test_opening_a_ledger_twice_keeps_its_locks(path) -> None:
    """POSIX drops them if the process closes any descriptor of the file."""
    handle = FileHandle(storage.connect_writing(path), path, writable=True)

    def is_locked() -> bool:
        with contextlib.closing(sqlite3.connect(path, timeout=0)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                return "locked" in str(error)
        return False

    with handle.transaction():
        PrivacyLedger.open(path, mode="r").close()
        assert in_a_fork(is_locked) == 0
    handle.close()


@pytest.mark.parametrize("act", ["remove", "move", "replace"])
def test_a_file_that_went_away_stops_the_writer(ledger, act) -> None:
    file = ledger.path
    if act == "remove":
        file.unlink()
    else:
        file.rename(f"{file}.old")
    if act == "replace":
        file.write_bytes(Path(f"{file}.old").read_bytes())

    assert refuses(ledger)


def test_reserved_rounds_are_not_run_in_a_fork(ledger) -> None:
    """It would release what its parent releases under the same block."""
    block, step = ledger.start_run("a"), Round(FullDataset(), QUERIES)
    for _ in range(2):  # The second block has room for more.
        block.cover(step)
    assert not block.is_between_blocks

    def is_refused() -> bool:
        try:
            block.cover(step)
        except LedgerWriteError as error:
            return "forked" in str(error)
        return False

    block.cover(step)
    assert in_a_fork(is_refused) == 0


@pytest.mark.standard
def test_a_reader_in_another_process_sees_what_is_committed(ledger) -> None:
    block = ledger.start_run("a")
    block.cover(Round(FullDataset(), QUERIES), 10)
    reserved = in_another_process(_COUNT, ledger.path)
    block.settle(used=1)

    assert reserved == "15"
    assert in_another_process(_COUNT, ledger.path) == "6"


@pytest.mark.full
def test_forgotten_ledgers_are_closed_without_a_warning(tmp_path) -> None:
    """Python 3.13 warns of connections that nobody closed."""
    gc.collect()  # Closes what other tests forgot.
    before = open_connections()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivacyLedger.in_memory(dataset="d")
        PrivacyLedger.open(tmp_path / "l.db", dataset="d")
        gc.collect()

    assert open_connections() == before


@pytest.mark.full
def test_refused_files_leave_no_connection(tmp_path) -> None:
    before = open_connections()
    (tmp_path / "text").write_text("text" * 999)
    PrivacyLedger.open(tmp_path / "l.db", dataset="d").close()

    with pytest.raises(LedgerError):
        PrivacyLedger.open(tmp_path / "text")
    with pytest.raises(ValueError, match="`dataset`"):
        PrivacyLedger.open(tmp_path / "l.db", dataset="other")

    assert open_connections() == before
