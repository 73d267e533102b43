"""Rows that were edited with other tools are found."""

import contextlib
import re
import sqlite3
from pathlib import Path

import pytest

from keras_dp.errors import (
    LedgerError,
    LedgerIntegrityError,
    LedgerWriteError,
)
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PrivacyLedger,
)

EDITS = [
    "UPDATE log SET count = count - 1 WHERE seq = 1",
    "UPDATE log SET count = count + 1 WHERE seq = 4",
    "UPDATE log SET count = 0 WHERE seq = 4",
    "UPDATE log SET kind = 'reserve' WHERE seq = 1",
    "UPDATE log SET kind = 'record' WHERE seq = 2",
    "UPDATE log SET kind = 'other' WHERE seq = 1",
    "UPDATE log SET body = 2 WHERE seq = 1",
    "UPDATE log SET body = 99 WHERE seq = 1",
    "UPDATE log SET target = 1 WHERE seq = 1",
    "UPDATE log SET target = 3 WHERE kind = 'settle'",
    "UPDATE log SET target = NULL WHERE kind = 'settle'",
    "UPDATE log SET hash = upper(hash) WHERE seq = 3",
    "UPDATE log SET seq = 99 WHERE seq = 5",
    "UPDATE log SET seq = -1 WHERE seq = 1",
    "UPDATE log SET seq = 0 WHERE seq = 1",
    "UPDATE log SET seq = -seq",
    "DELETE FROM log WHERE seq = 1",
    "DELETE FROM log WHERE seq = 3",
    "DELETE FROM log WHERE seq = 5",
    "DELETE FROM log",
    "INSERT INTO log VALUES (6, 'record', 1, 1, NULL, '')",
    "INSERT INTO log VALUES (0, 'record', 1, 1, NULL, '')",
    "INSERT INTO log SELECT 6, kind, body, count, target, hash FROM log"
    " WHERE seq = 5",
    "UPDATE bodies SET body = replace(body, '4.0', '8.0')",
    "UPDATE bodies SET body = body || ' ' WHERE id = 1",
    "UPDATE bodies SET id = 99 WHERE id = 1",
    "UPDATE bodies SET id = -id",
    "DELETE FROM bodies WHERE id = 1",
    "DELETE FROM bodies",
    "UPDATE meta SET value = '4' WHERE key = 'rows'",
    "UPDATE meta SET value = '05' WHERE key = 'rows'",
    "UPDATE meta SET value = '\u0665' WHERE key = 'rows'",
    "UPDATE meta SET value = '' WHERE key = 'rows'",
    "UPDATE meta SET value = '1' WHERE key = 'total'",
    "UPDATE meta SET value = upper(value) WHERE key = 'head'",
    "UPDATE meta SET value = replace(value, 'example', 'users')"
    " WHERE key = 'header'",
    "UPDATE meta SET key = 'other' WHERE key = 'head'",
    "UPDATE meta SET key = 'other' WHERE key = 'header'",
    "INSERT INTO meta VALUES ('more', '')",
    "DELETE FROM meta WHERE key = 'rows'",
    "DELETE FROM meta WHERE key = 'total'",
    "DELETE FROM meta WHERE key = 'head'",
    "DELETE FROM meta",
]
EXCHANGES = [(1, 4), (2, 3), (4, 5)]


@pytest.fixture
def path(tmp_path) -> Path:
    """A ledger with a row of each kind, five in all, and 9 rounds."""
    path = tmp_path / "l.db"
    with PrivacyLedger.open(path, dataset="d") as ledger:
        ledger.record(FullDataset(), [GaussianSum("g", 1.0, 4.0)], count=2)
        queries = [GaussianSum("g", 1.0, 5.0)]
        block = ledger.reserve(FullDataset(), queries, count=3)
        ledger.reserve(FullDataset(), queries, count=3)
        ledger.record(FullDataset(), [GaussianSum("g", 1.0, 6.0)], count=3)
        block.settle(used=1)
    return path


def edit(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0


def test_an_untouched_ledger_passes(path) -> None:
    """The control of all tests below."""
    with PrivacyLedger.open(path) as ledger:
        assert ledger.verify()[:2] == (5, 9)
        assert ledger.unsettled == 3


def test_an_edit_that_changes_nothing_passes(path) -> None:
    edit(path, "UPDATE log SET count = count", "UPDATE bodies SET body = body")

    with PrivacyLedger.open(path) as ledger:
        assert ledger.verify()[:2] == (5, 9)


@pytest.mark.parametrize("statement", EDITS)
def test_an_edited_ledger_is_found(path, statement: str) -> None:
    with PrivacyLedger.open(path, mode="r") as ledger:
        edit(path, statement)
        with pytest.raises(LedgerIntegrityError):
            ledger.verify()
    before = path.read_bytes()

    for mode in ("a", "r"):
        with pytest.raises(LedgerError):
            PrivacyLedger.open(path, mode=mode)
    assert path.read_bytes() == before


def test_a_removed_row_is_named(path) -> None:
    edit(path, "DELETE FROM log WHERE seq = 3")

    with pytest.raises(LedgerIntegrityError, match=r"Row 3 .* is missing"):
        PrivacyLedger.open(path, mode="r")


@pytest.mark.parametrize(("first", "second"), EXCHANGES)
def test_exchanged_rows_are_found(path, first: int, second: int) -> None:
    edit(
        path,
        f"UPDATE log SET seq = -1 WHERE seq = {first}",
        f"UPDATE log SET seq = {first} WHERE seq = {second}",
        f"UPDATE log SET seq = {second} WHERE seq = -1",
    )

    with pytest.raises(LedgerIntegrityError, match=rf"Row {first} "):
        PrivacyLedger.open(path, mode="r")


def test_exchanged_bodies_are_found(path) -> None:
    edit(
        path,
        "UPDATE log SET body = -1 WHERE body = 1",
        "UPDATE log SET body = 1 WHERE body = 2",
        "UPDATE log SET body = 2 WHERE body = -1",
    )

    with pytest.raises(LedgerIntegrityError, match=re.escape("Row 1 ")):
        PrivacyLedger.open(path, mode="r")


def test_a_writer_stops_at_a_ledger_without_its_marks(path) -> None:
    with PrivacyLedger.open(path) as ledger:
        edit(path, "DELETE FROM meta WHERE key = 'total'")
        with pytest.raises(LedgerIntegrityError):
            ledger.record(FullDataset(), [GaussianSum("g", 1.0, 4.0)])
        assert len(ledger) == 9


def test_a_trigger_that_could_change_rows_is_found(tmp_path) -> None:
    path = tmp_path / "run.ledger"
    with PrivacyLedger.open(path, dataset="test") as ledger:
        ledger.record(FullDataset(), [NonPrivateSum("loss")])
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(
        "CREATE TRIGGER forget AFTER INSERT ON log BEGIN "
        "DELETE FROM log WHERE seq = 1; END"
    )
    connection.close()

    with pytest.raises(LedgerIntegrityError, match="forget"):
        PrivacyLedger.open(path)


def test_the_log_of_a_removed_ledger_is_not_adopted(tmp_path) -> None:
    path = tmp_path / "run.ledger"
    (tmp_path / "run.ledger-wal").write_bytes(b"of another one")

    with pytest.raises(LedgerWriteError, match="removed"):
        PrivacyLedger.open(path, dataset="test")

    assert not path.exists()
