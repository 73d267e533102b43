"""Commits that were cut short, and files with two names: no round is lost."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from keras_dp.errors import LedgerError, LedgerFormatError
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger, Round
from keras_dp.ledger.places import storage
from keras_dp.ledger.places.place import FileHandle
from tests.ledger_faults import (
    CUT,
    CUT_QUERIES,
    die_in_commit,
    in_a_fork,
    make,
    start_fork,
)

MODES = ["a", "r"]
QUERIES = [GaussianSum("gradients", 1.0, 4.0)]
ROUNDS = 5


@pytest.fixture
def path(tmp_path) -> Path:
    """A ledger of `ROUNDS` rounds in as many rows."""
    path = tmp_path / "l.db"
    make(path, ROUNDS)
    return path


def rounds_of(path: Path, mode: str = "r") -> int:
    with PrivacyLedger.open(path, mode=mode) as ledger:
        return ledger.verify().rounds


def append(path: Path, count: int = 1) -> None:
    with PrivacyLedger.open(path) as ledger:
        ledger.record(FullDataset(), QUERIES, count=count)


def die_in_another_process(path: Path) -> bytes:
    """Does what `die_in_commit` does, while this process has the file open."""
    before = path.read_bytes()
    script = (
        "import pathlib, sys; from tests.ledger_faults import die_in_commit; "
        "die_in_commit(pathlib.Path(sys.argv[1]))"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", script, path], cwd=root, check=True)
    return before


class TestACommitThatWasCutShort:
    @pytest.mark.parametrize("mode", MODES)
    def test_is_undone_by_the_next_who_opens(self, path, mode) -> None:
        before = die_in_commit(path)
        assert storage.journal_beside(path).exists()

        assert rounds_of(path, mode) == ROUNDS

        assert path.read_bytes() == before
        assert os.listdir(path.parent) == ["l.db"]

    @pytest.mark.parametrize("mode", MODES)
    def test_may_have_written_everything(self, path, mode) -> None:
        """Before or after: the rounds were not released, as it did not end."""
        before = path.read_bytes()
        with PrivacyLedger.open(path) as ledger:
            ledger.record(FullDataset(), CUT_QUERIES, count=CUT)
        after = path.read_bytes()
        path.write_bytes(before)
        die_in_commit(path)
        path.write_bytes(after)

        assert rounds_of(path, mode) in (ROUNDS, ROUNDS + CUT)

    @pytest.mark.standard
    def test_stops_readers_that_are_open(self, path) -> None:
        """They may not undo it, and must not count half of it."""
        with PrivacyLedger.open(path, mode="r") as reader:
            die_in_another_process(path)
            with pytest.raises(LedgerError, match="once in a process"):
                len(reader)

            PrivacyLedger.open(path).close()

            assert len(reader) == ROUNDS

    @pytest.mark.standard
    def test_does_not_stop_writers_that_are_open(self, path) -> None:
        with PrivacyLedger.open(path) as writer:
            die_in_another_process(path)

            writer.record(FullDataset(), QUERIES)

            assert writer.verify().rounds == ROUNDS + 1

    @pytest.mark.parametrize("seed", range(4))
    def test_never_lowers_the_count_when_its_journal_is_damaged(
        self, path, seed
    ) -> None:
        """The file is refused, or holds the rounds before or after."""
        die_in_commit(path)
        file = path.read_bytes()
        whole = storage.journal_beside(path).read_bytes()
        chosen = random.Random(seed)

        for damage in range(12):
            damaged = bytearray(whole)
            if damage % 3 == 0:
                damaged = damaged[: chosen.randrange(len(whole))]
            for _ in range(damage % 3 * 4):
                place = chosen.choice([28, len(whole)])
                damaged[chosen.randrange(place)] ^= 1 << chosen.randrange(8)
            path.write_bytes(file)
            storage.journal_beside(path).write_bytes(damaged)
            with contextlib.suppress(LedgerError):
                assert rounds_of(path, "a") in (ROUNDS, ROUNDS + CUT)
            storage.journal_beside(path).unlink(missing_ok=True)

    def test_never_lowers_the_count_if_its_journal_is_lost(self, path) -> None:
        die_in_commit(path)
        storage.journal_beside(path).unlink()

        with pytest.raises(LedgerFormatError, match="truncated or corrupt"):
            PrivacyLedger.open(path)


class TestARoundThatWasReserved:
    """It is in the file itself, which no other file completes."""

    @pytest.mark.parametrize("act", ["die", "stay"])
    def test_is_in_a_copy_of_the_file(self, path, act) -> None:
        def reserve() -> None:
            ledger = PrivacyLedger.open(path)
            ledger.start_run("a").cover(Round(FullDataset(), QUERIES), 100)
            if act == "die":
                os.kill(os.getpid(), 9)

        assert in_a_fork(reserve) == (-9 if act == "die" else 1)
        assert os.listdir(path.parent) == ["l.db"]

        shutil.copy(path, path.with_name("copy.db"))

        assert rounds_of(path.with_name("copy.db")) == ROUNDS + 100


class TestAFileWithTwoNames:
    @pytest.fixture
    def other(self, path) -> Path:
        folder = path.parent / "elsewhere"
        folder.mkdir()
        os.link(path, folder / "other.db")
        return folder / "other.db"

    def test_is_one_ledger(self, path, other) -> None:
        with PrivacyLedger.open(path) as one, PrivacyLedger.open(other) as two:
            for _ in range(10):
                one.record(FullDataset(), QUERIES)
                two.record(FullDataset(), [GaussianSum("other", 1.0, 4.0)])
                assert len(one) == len(two)

        assert rounds_of(path) == rounds_of(other) == ROUNDS + 20

    @pytest.mark.standard
    def test_is_written_by_two_processes_at_once(self, path, other) -> None:
        def write(name: Path) -> bool:
            for _ in range(20):
                append(name)
            return True

        child = start_fork(lambda: write(path))

        assert in_a_fork(lambda: write(other)) == 0
        assert os.waitpid(child, 0)[1] == 0
        assert rounds_of(path) == ROUNDS + 40

    def test_is_refused_through_another_after_a_cut(self, path, other) -> None:
        """The other name has no journal, and half a commit is not counted."""
        die_in_commit(path)

        with pytest.raises(LedgerError):
            PrivacyLedger.open(other)

        assert rounds_of(path) == rounds_of(other) == ROUNDS

    @pytest.mark.parametrize("later", [1, 2, 30])
    @pytest.mark.parametrize("mode", MODES)
    def test_keeps_what_followed_a_cut_under_the_other_name(
        self, path, other, later, mode
    ) -> None:
        """The commit was cut short before it changed the file."""
        before = die_in_commit(path)
        with path.open("r+b") as file:
            file.write(before)
        for _ in range(later):
            append(other)

        with pytest.raises(LedgerError, match="Move the journal away"):
            PrivacyLedger.open(path, mode=mode)
        assert rounds_of(other) == ROUNDS + later

        storage.journal_beside(path).rename(path.with_name("away"))
        assert rounds_of(path, mode) == ROUNDS + later

    @pytest.mark.standard
    def test_stops_a_writer_before_it_undoes_another(self, path, other) -> None:
        connection = storage.connect_writing(path)
        writer = PrivacyLedger(FileHandle(connection, path, writable=True))
        before = die_in_another_process(path)
        with path.open("r+b") as file:
            file.write(before)
        append(other)

        with pytest.raises(LedgerError, match="Move the journal away"):
            writer.record(FullDataset(), QUERIES)
        with pytest.raises(LedgerError, match="Move the journal away"):
            len(writer)

        assert rounds_of(other) == ROUNDS + 1
        writer.close()


class TestAJournalFromElsewhere:
    def test_beside_an_older_copy_is_not_put_back(self, path) -> None:
        older = path.read_bytes()
        append(path, count=3)
        append(path, count=4)
        die_in_commit(path)
        path.write_bytes(older)

        with pytest.raises(LedgerError, match="Move the journal away"):
            PrivacyLedger.open(path)

    def test_removes_no_file_that_it_names(self, path, tmp_path) -> None:
        """SQLite removes the "super-journal" that a journal names."""
        precious = tmp_path / "precious"
        precious.write_text("text")
        name = os.fsencode(precious)
        die_in_commit(path)
        with storage.journal_beside(path).open("ab") as file:
            number = (2**30 // 4096 + 1).to_bytes(4, "big")
            length, checksum = len(name), sum(name)
            file.write(number + name + length.to_bytes(4, "big"))
            file.write(checksum.to_bytes(4, "big"))
            file.write(bytes.fromhex("d9d505f920a163d7"))

        for mode in MODES:
            with pytest.raises(LedgerError, match="names another file"):
                PrivacyLedger.open(path, mode=mode)

        assert precious.read_text() == "text"

    def test_that_is_no_file_is_refused(self, path) -> None:
        os.mkfifo(storage.journal_beside(path))

        with pytest.raises(LedgerError):
            PrivacyLedger.open(path)


class TestANewLedger:
    @pytest.mark.parametrize("suffix", ["-journal", "-wal"])
    def test_does_not_adopt_the_rest_of_another(self, tmp_path, suffix) -> None:
        (tmp_path / f"l.db{suffix}").write_bytes(b"of another one")

        with pytest.raises(LedgerError, match="removed"):
            PrivacyLedger.open(tmp_path / "l.db", dataset="d")

        assert os.listdir(tmp_path) == [f"l.db{suffix}"]

    @pytest.mark.parametrize(
        ("suffix", "size"),
        [("-journal", 0), ("-journal", 600), ("-wal", 0), ("-shm", 0)],
    )
    def test_may_be_made_beside_files_that_hold_nothing(
        self, tmp_path, suffix, size
    ) -> None:
        (tmp_path / f"l.db{suffix}").write_bytes(bytes(size))

        with PrivacyLedger.open(tmp_path / "l.db", dataset="d") as ledger:
            ledger.record(FullDataset(), QUERIES)

        assert rounds_of(tmp_path / "l.db") == 1

    def test_removes_what_a_killed_process_left(self, tmp_path) -> None:
        (tmp_path / ".l.db.0123456789abcdef.new").write_bytes(b"half of it")
        kept = [".l.db.mine.new", ".m.db.0123456789abcdef.new", "l.db.new"]
        for name in kept:
            (tmp_path / name).write_text("text")

        PrivacyLedger.open(tmp_path / "l.db", dataset="d").close()

        assert sorted(os.listdir(tmp_path)) == sorted([*kept, "l.db"])

    def test_drops_the_name_under_which_it_was_made(self, path) -> None:
        """The process died between giving it one name and taking the other."""
        os.link(path, path.with_name(".l.db.0123456789abcdef.new"))

        PrivacyLedger.open(path).close()

        assert os.listdir(path.parent) == ["l.db"]
