"""Ledgers where the system is not Linux, as far as Linux can play the part."""

import fcntl
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_dp import _system
from keras_dp.errors import LedgerWriteError
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
from keras_dp.ledger.places import storage
from keras_dp.sampling.record_files import RecordFile
from tests.ledger_faults import die_in_commit, make

QUERIES = [GaussianSum("gradients", 1.0, 4.0)]
FULL_SYNC = 51  # Its number on macOS.


def rename_as_windows(source, target) -> None:
    if Path(target).exists():
        raise FileExistsError(target)
    os.replace(source, target)


def open_as_windows(path, *arguments, open_=os.open) -> int:
    if Path(path).is_dir():
        raise PermissionError(path)
    return open_(path, *arguments)


def kill_as_windows(number, signal) -> None:
    raise AssertionError("os.kill would end the process, or send it Ctrl-C")


@pytest.fixture
def windows(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("USERNAME", "alice")
    monkeypatch.setattr(_system, "IS_WINDOWS", True)
    monkeypatch.setattr(_system, "JOURNAL_MODE", "truncate")
    monkeypatch.setattr(os, "rename", rename_as_windows)
    monkeypatch.setattr(os, "open", open_as_windows)
    monkeypatch.setattr(os, "kill", kill_as_windows)
    for name in ("O_CLOEXEC", "link", "getuid", "pread", "preadv"):
        monkeypatch.delattr(os, name)


@pytest.fixture
def commands(monkeypatch) -> list[int]:
    """Collects what macOS would be asked, each time for a descriptor."""
    asked = []
    monkeypatch.setattr(_system, "JOURNAL_MODE", "truncate")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)
    monkeypatch.setattr(
        fcntl, "fcntl", lambda descriptor, command: asked.append(command)
    )
    return asked


def append(path) -> None:
    with PrivacyLedger.open(path, dataset="d") as ledger:
        ledger.record(FullDataset(), QUERIES, count=3)


@pytest.mark.usefixtures("windows")
class TestOnWindows:
    def test_a_ledger_is_written_and_read(self, tmp_path) -> None:
        path = tmp_path / "people.ledger"
        for _ in range(2):
            append(path)

        with PrivacyLedger.open(path, mode="r") as ledger:
            assert ledger.verify().rounds == 6
        assert sorted(os.listdir(tmp_path)) == [
            "people.ledger",
            "people.ledger-journal",  # Cut to nothing.
        ]
        assert not storage.journal_beside(path).stat().st_size

    def test_a_name_that_is_taken_is_kept(self, tmp_path) -> None:
        old, new = tmp_path / "old", tmp_path / "new"
        old.write_text("old")
        new.write_text("new")

        with pytest.raises(FileExistsError):
            _system.publish(new, old)

        assert old.read_text() == "old"

    def test_no_other_process_is_asked_for(self, monkeypatch) -> None:
        with PrivacyLedger.in_memory(dataset="d") as ledger:
            ledger.start_run("theirs").record(FullDataset(), QUERIES)
            (run,) = ledger.runs
        monkeypatch.setattr(os, "getpid", lambda: 2)

        assert run.state == "unknown"

    def test_this_process_runs(self) -> None:
        with PrivacyLedger.in_memory(dataset="d") as ledger:
            ledger.start_run("mine").record(FullDataset(), QUERIES)

            assert ledger.runs[0].state == "running"

    def test_files_of_records_are_read(self, tmp_path) -> None:
        path = tmp_path / "records"
        path.write_bytes(bytes(range(256)))

        (part,) = RecordFile(path).read(np.array([250]), np.array([4]))

        assert part == bytes([250, 251, 252, 253])


class TestOnMacOS:
    def test_files_and_folders_are_synced_in_full(
        self, commands, tmp_path
    ) -> None:
        PrivacyLedger.open(tmp_path / "a.ledger", dataset="d").close()

        assert commands == [FULL_SYNC] * 2  # The file, then its folder.

    def test_elsewhere_is_what_any_system_has(
        self, monkeypatch, tmp_path
    ) -> None:
        """A share of another machine has no full sync."""
        synced = []
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)
        monkeypatch.setattr(os, "fsync", synced.append)

        with (tmp_path / "file").open("wb") as file:
            _system.sync(file.fileno())  # Linux does not know the command.

            assert synced == [file.fileno()]

    def test_sqlite_syncs_in_full(self, tmp_path) -> None:
        path = tmp_path / "a.ledger"
        make(path, 1)

        connection = storage.connect_writing(path)

        for pragma in ("fullfsync", "synchronous"):
            (value,) = connection.execute(f"PRAGMA {pragma}").fetchone()
            assert value == {"fullfsync": 1, "synchronous": 3}[pragma]
        connection.close()


class TestAJournalThatIsCutToNothing:
    @pytest.fixture(autouse=True)
    def _mode(self, monkeypatch) -> None:
        monkeypatch.setattr(_system, "JOURNAL_MODE", "truncate")

    @pytest.mark.parametrize("mode", ["a", "r"])
    def test_undoes_a_commit_that_was_cut_short(self, mode, tmp_path) -> None:
        path = tmp_path / "l.db"
        make(path)
        append(path)
        before = die_in_commit(path)

        with PrivacyLedger.open(path, mode=mode) as ledger:
            ledger.verify()

        assert path.read_bytes() == before

    def test_is_no_remains_of_an_older_ledger(self, tmp_path) -> None:
        path = tmp_path / "l.db"
        append(path)
        path.unlink()

        append(path)

        with PrivacyLedger.open(path, mode="r") as ledger:
            assert ledger.verify().rounds == 3

    def test_of_an_older_commit_is_refused(self, tmp_path) -> None:
        """Control: a whole journal would be put back into a new ledger."""
        path = tmp_path / "l.db"
        make(path)
        die_in_commit(path)
        path.unlink()

        with pytest.raises(LedgerWriteError, match="older ledger"):
            append(path)


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux does so.")
def test_linux_deletes_the_journal(tmp_path) -> None:
    append(tmp_path / "l.db")

    assert _system.JOURNAL_MODE == "delete"
    assert os.listdir(tmp_path) == ["l.db"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals.")
@pytest.mark.parametrize(("number", "runs"), [(1, True), (2**22 + 1, False)])
def test_a_process_is_known_by_its_number(number, runs) -> None:
    """Number 1 is another user's, or this one's; the other is too large."""
    assert _system.is_process(number) == runs
