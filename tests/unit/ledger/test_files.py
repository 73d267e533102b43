"""Files that are no ledgers, or no longer: refused, and left as they are."""

import contextlib
import hashlib
import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from keras_dp import _check
from keras_dp.errors import (
    LedgerError,
    LedgerFormatError,
    LedgerVersionError,
    LedgerWriteError,
)
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger, Round
from keras_dp.reporting.cli import main
from tests.ledger_faults import die_in_commit, make

MODES = ["a", "r"]
QUERIES = [GaussianSum("gradients", 1.0, 4.0)]


@pytest.fixture
def path(tmp_path) -> Path:
    """A ledger of five rounds, alone in its folder."""
    make(tmp_path / "l.db")
    return tmp_path / "l.db"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def refuse(path: Path, mode: str, error: type[Exception]) -> None:
    before = digest(path)

    with pytest.raises(error):
        PrivacyLedger.open(path, dataset="d", mode=mode)

    assert digest(path) == before


@pytest.mark.parametrize("mode", MODES)
def test_truncated_files_are_refused(tmp_path, path, mode: str) -> None:
    content = path.read_bytes()
    chosen = random.Random(1)
    lengths = {1, 15, 16, 99, 100, 511, 512, 4095, 4096, len(content) - 1}
    lengths |= {chosen.randrange(len(content)) for _ in range(30)}

    for length in sorted(lengths):
        path.write_bytes(content[:length])
        refuse(path, mode, LedgerFormatError)
        assert os.listdir(tmp_path) == ["l.db"], length


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_other_databases_are_refused(tmp_path, mode: str, journal) -> None:
    path = tmp_path / "l.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode={journal}")
        connection.execute("CREATE TABLE meta (key, value)")

    refuse(path, mode, LedgerFormatError)

    assert os.listdir(tmp_path) == ["l.db"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("version", [5, 2**31 - 1, 2, 1, 0, -1])
def test_other_versions_are_refused(path, mode, version) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={version}")

    refuse(path, mode, LedgerVersionError)


@pytest.mark.parametrize("mode", MODES)
def test_flipped_bytes_never_change_what_is_counted(path, mode) -> None:
    """Either the file is refused and kept, or the byte did not matter."""
    content = path.read_bytes()
    with PrivacyLedger.open(path, mode="r") as ledger:
        expected = ledger.rounds
    chosen = random.Random(2)
    places = [*range(16, 100), *chosen.sample(range(100, len(content)), 80)]
    refused = 0

    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 1 << chosen.randrange(8)
        path.write_bytes(flipped)
        try:
            with PrivacyLedger.open(path, mode=mode) as ledger:
                assert ledger.rounds == expected, place
        except LedgerError as error:
            refused += 1
            if not isinstance(error, LedgerWriteError):
                assert path.read_bytes() == flipped, place

    assert refused > len(places) / 4


@pytest.mark.parametrize("mode", MODES)
def test_a_refused_ledger_is_not_changed(path, mode: str) -> None:
    before = digest(path)

    with pytest.raises(ValueError, match="`dataset` must"):
        PrivacyLedger.open(path, dataset="other", mode=mode)
    with pytest.raises(ValueError, match=r"`unit` must .*Received"):
        PrivacyLedger.open(path, unit="other", mode=mode)

    assert digest(path) == before


@pytest.mark.parametrize("mode", MODES)
def test_a_write_ahead_log_beside_a_ledger_is_refused(path, mode) -> None:
    """SQLite would read rows from it that are not in the file."""
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("DELETE FROM log")
        other.commit()

        refuse(path, mode, LedgerFormatError)


def test_a_ledger_in_another_journal_mode_is_put_back(tmp_path, path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode=WAL")

    with PrivacyLedger.open(path) as ledger:
        ledger.record(FullDataset(), QUERIES)
        assert os.listdir(tmp_path) == ["l.db"]

    with PrivacyLedger.open(path, mode="r") as ledger:
        assert len(ledger) == 6


def test_creating_needs_a_data_set_and_a_folder(tmp_path) -> None:
    with pytest.raises(ValueError, match="`dataset` must"):
        PrivacyLedger.open(tmp_path / "l.db")
    with pytest.raises(LedgerWriteError, match="can be created"):
        PrivacyLedger.open(tmp_path / "none" / "l.db", dataset="d")
    with pytest.raises(LedgerWriteError, match="can be created"):
        PrivacyLedger.open(tmp_path / ("x" * 255), dataset="d")
    with pytest.raises(ValueError, match=r"`mode` must .*Received"):
        PrivacyLedger.open(tmp_path / "l.db", dataset="d", mode="w")

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "path",
    ["x" * 300, "a\0b", b"l.db", 3, None, "file/l.db"],
    ids=["long", "NUL", "bytes", "integer", "None", "below a file"],
)
def test_paths_of_no_file_say_so(tmp_path, monkeypatch, path, mode) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("text")

    with pytest.raises(
        LedgerError, match=r"(?s)^`path` must .*Received: path="
    ):
        PrivacyLedger.open(path, dataset="d", mode=mode)

    assert os.listdir(tmp_path) == ["file"]


def test_reading_changes_no_byte_of_the_file(path) -> None:
    before = digest(path), path.stat().st_mtime_ns

    with PrivacyLedger.open(path, mode="r") as ledger:
        assert len(ledger) == 5
        assert ledger.rounds
        with pytest.raises(LedgerWriteError, match="mode='a'"):
            ledger.record(FullDataset(), QUERIES)
        with pytest.raises(LedgerWriteError, match="mode='a'"):
            ledger.start_run("a").cover(Round(FullDataset(), QUERIES))

    assert (digest(path), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    "name", ["a b", "a?mode=memory", "a#b", "a%20b", "é☃", "file:a", "a'b;"]
)
def test_odd_names_are_names(tmp_path, monkeypatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)

    with PrivacyLedger.open(name, dataset="d") as ledger:
        ledger.record(FullDataset(), QUERIES)

    assert os.listdir(tmp_path) == [name]
    with PrivacyLedger.open(name, mode="r") as ledger:
        assert len(ledger) == 1


# What people type, or copy from another program, for the URL of a server.
LIKE_URLS = [
    "postgresql+psycopg://al:secret@host/db",
    "mysql://al:secret@host/db",
    "POSTGRESQL://al:secret@host/db",
    " postgresql://al:secret@host/db",
    "postgresql:/al:secret@host/db",
    "postgresql//al:secret@host/db",
    "al:secret@host/db",
    "host=host password = secret",
    b"postgresql://al:secret@host/db",
    Path("postgresql://al:secret@host/db"),
]


def messages_of(error: BaseException | None) -> str:
    """Returns all that a traceback shows of an error and its causes."""
    text = ""
    while error is not None:
        text += f"{error!r} {error} "
        error = error.__cause__ or error.__context__
    return text


@pytest.mark.parametrize("url", LIKE_URLS, ids=repr)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dataset", [None, "d"])
def test_what_may_hold_a_password_is_no_file_and_not_shown(
    tmp_path, monkeypatch, url, mode, dataset
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(LedgerError, match=r"`path` must .*Received") as found:
        PrivacyLedger.open(url, dataset=dataset, mode=mode)

    assert "secret" not in messages_of(found.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("url", ["postgresql://al:secret@h/d", *LIKE_URLS])
def test_a_url_where_a_ledger_must_be_is_not_shown(url) -> None:
    with pytest.raises(TypeError, match=r"Received: ledger=") as found:
        _check.kind(PrivacyLedger, ledger=url)

    assert "secret" not in messages_of(found.value)


def test_the_tests_above_see_what_is_shown(tmp_path) -> None:
    """Control: a name that cannot hold a password stands in messages."""
    with pytest.raises(FileNotFoundError) as found:
        PrivacyLedger.open(tmp_path / "secret", mode="r")

    assert "secret" in messages_of(found.value)


@pytest.mark.parametrize(
    "command",
    [
        ("report", "--delta", "1e-5", "{}"),
        ("seal", "l.db", "--delta", "1e-5", "--out", "{}"),
        ("seal", "l.db", "--delta", "1e-5", "--out", "o", "--key", "{}"),
        ("verify", "l.db", "--against", "{}"),
    ],
    ids=" ".join,
)
def test_no_command_shows_a_password(
    tmp_path, monkeypatch, capsys, command
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "l.db")

    for url in ("postgresql+psycopg2://al:secret@h/d", "al:secret@h/d"):
        try:
            code = main([part.format(url) for part in command])
        except SystemExit as usage:
            code = usage.code
        out, err = capsys.readouterr()
        assert code in (2, 3)
        assert "password" in err
        assert "secret" not in out + err


def test_a_relative_path_outlives_a_change_of_folder(
    tmp_path, monkeypatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    with PrivacyLedger.open("l.db", dataset="d") as ledger:
        monkeypatch.chdir(tmp_path / "elsewhere")
        ledger.record(FullDataset(), QUERIES)
        with PrivacyLedger.open(ledger.path, mode="r") as reader:
            assert len(reader) == 1


def test_a_symbolic_link_leads_to_file_and_journal(tmp_path, path) -> None:
    die_in_commit(path)
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "link"
    link.symlink_to(path)

    with PrivacyLedger.open(link) as ledger:
        ledger.record(FullDataset(), QUERIES)

    with PrivacyLedger.open(path, mode="r") as ledger:
        assert len(ledger) == 6
    assert os.listdir(tmp_path / "folder") == ["link"]


_AS_NOBODY = """
import os, pathlib, sys, urllib.parse
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
pathlib.Path("/x").as_uri()  # The other user may not import any more.
os.setuid(65534)
path, mode = sys.argv[1:]
"""
_OPEN = """
try:
    with PrivacyLedger.open(path, dataset="d", mode=mode) as ledger:
        print(len(ledger))
except Exception as error:
    print(type(error).__name__)
"""
_READ_TWICE = """
with PrivacyLedger.open(path, mode=mode) as ledger:
    print(len(ledger), flush=True)
    sys.stdin.readline()
    print(len(ledger))
"""


@pytest.mark.full
@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
@pytest.mark.parametrize(
    ("is_cut", "mode", "expected"),
    [
        (False, "r", "5"),
        (False, "a", "LedgerWriteError"),
        (True, "r", "LedgerError"),
        (True, "a", "LedgerError"),
    ],
)
@pytest.mark.standard
def test_folders_may_be_read_only(tmp_path, is_cut, mode, expected) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder / "l.db")
    if is_cut:
        die_in_commit(folder / "l.db")
    before = digest(folder / "l.db")
    let_others_enter(folder)

    assert as_nobody(_OPEN, folder / "l.db", mode) == expected
    assert digest(folder / "l.db") == before


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
@pytest.mark.standard
def test_a_reader_of_a_read_only_folder_sees_later_rounds(path) -> None:
    let_others_enter(path.parent)
    reader = subprocess.Popen(
        [sys.executable, "-c", _AS_NOBODY + _READ_TWICE, path, "r"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    first = reader.stdout.readline()
    with PrivacyLedger.open(path) as ledger:
        ledger.record(FullDataset(), QUERIES, count=100)

        second, _ = reader.communicate("\n")

    assert (first, second) == ("5\n", "105\n")


def let_others_enter(folder: Path) -> None:
    for place in (folder, *folder.parents):
        if place.stat().st_uid == os.getuid() and place.stat().st_mode & 5 != 5:
            place.chmod(0o755)


def as_nobody(script: str, *arguments: object) -> str:
    return subprocess.run(
        [sys.executable, "-c", _AS_NOBODY + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
