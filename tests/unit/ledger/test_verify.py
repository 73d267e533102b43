"""Rows that were edited with other tools are found."""

import contextlib
import signal
import sqlite3
from pathlib import Path

import pytest

from keras_dp.errors import LedgerError, LedgerFormatError, LedgerIntegrityError
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    Header,
    PrivacyLedger,
    Round,
)
from keras_dp.ledger.places import schema, storage
from keras_dp.ledger.rows import chain, log
from keras_dp.ledger.rows.codec import text_from_round
from keras_dp.ledger.rows.row import Row
from tests.ledger_faults import in_a_fork
from tests.waiting import HUNG_SECONDS

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
    "INSERT INTO log VALUES (6, 'record', NULL, 1, 1, NULL, NULL, 0, '')",
    "INSERT INTO log VALUES (0, 'record', NULL, 1, 1, NULL, NULL, 0, '')",
    "INSERT INTO log SELECT 6, kind, run, body, count, target, charge, time, "
    "hash FROM log WHERE seq = 5",
    "UPDATE log SET run = 1 WHERE seq = 4",
    "UPDATE log SET charge = '[1,[[0,1]]]' WHERE seq = 4",
    "UPDATE log SET time = time - 1 WHERE seq = 4",
    "UPDATE meta SET value = '{\"1\":[[1],[0]]}' WHERE key = 'balances'",
    "DELETE FROM meta WHERE key = 'balances'",
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
    "UPDATE meta SET value = 'other' WHERE key = 'writer'",
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
        step = Round(FullDataset(), (GaussianSum("g", 1.0, 5.0),))
        rounds = log.Rounds(text_from_round(step))
        with ledger.lock() as database:
            block = log.append_reservation(database, rounds, 3)
            log.append_reservation(database, rounds, 3)
        ledger.record(FullDataset(), [GaussianSum("g", 1.0, 6.0)], count=3)
        with ledger.lock() as database:
            log.settle(database, block, rounds, 3, 1)
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


def test_the_hash_of_a_row_has_each_of_its_fields() -> None:
    """Rules of rows would find some edits without it, but not all of them."""
    row = Row(2, "record", 1, "{}", 5, 1, "[]", 0, "")
    others = [row._replace(**{name: None}) for name in Row._fields[:-1]]

    digests = {chain.hash_of("before", *each[:-1]) for each in (row, *others)}

    assert len(digests) == len(Row._fields)


def test_the_head_has_each_of_the_marks() -> None:
    meta = dict.fromkeys(["header", "rows", "total", "balances", "writer"], "a")
    others = [meta | {key: "b"} for key in meta]

    assert len({chain.head(each, None) for each in (meta, *others)}) == 6


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


def test_a_writer_stops_at_a_ledger_without_its_marks(path) -> None:
    with PrivacyLedger.open(path) as ledger:
        edit(path, "DELETE FROM meta WHERE key = 'total'")
        with pytest.raises(LedgerIntegrityError):
            ledger.record(FullDataset(), [GaussianSum("g", 1.0, 4.0)])
        with pytest.raises(LedgerIntegrityError):
            len(ledger)


def test_the_last_rows_cannot_be_removed_by_copying(path) -> None:
    """Every hash that would be needed must be computed."""
    edit(
        path,
        "DELETE FROM log WHERE seq = 5",
        "DELETE FROM log WHERE seq = 4",
        "UPDATE meta SET value = (SELECT hash FROM log WHERE seq = 3) "
        "WHERE key = 'head'",
        "UPDATE meta SET value = '3' WHERE key = 'rows'",
        "UPDATE meta SET value = '8' WHERE key = 'total'",
    )

    for mode in ("a", "r"):
        with pytest.raises(LedgerIntegrityError, match="must end where"):
            PrivacyLedger.open(path, mode=mode)


def test_someone_who_computes_the_hashes_is_not_found(path) -> None:
    """The limit of a chain without a key, stated in `ledger.chain`."""
    with contextlib.closing(storage.connect_writing(path)) as connection:
        head = log.meta(connection)["head"]
        connection.execute("DELETE FROM log WHERE seq > 3")
        connection.execute("UPDATE meta SET value = '8' WHERE key = 'total'")
        log.finish(connection, "")

    with PrivacyLedger.open(path) as ledger:
        assert ledger.verify().rounds == 8
        assert ledger.verify().head != head


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM log WHERE seq = 5",
        "UPDATE log SET count = 4 WHERE seq = 5",
        "UPDATE meta SET value = '5' WHERE key = 'total'",
        "DELETE FROM bodies",
    ],
)
def test_a_writer_does_not_build_on_an_edited_end(path, statement) -> None:
    with PrivacyLedger.open(path) as ledger:
        edit(path, statement)
        before = path.read_bytes()

        with pytest.raises(LedgerIntegrityError):
            ledger.record(FullDataset(), [GaussianSum("g", 1.0, 4.0)])

    assert path.read_bytes() == before


ENDLESS = (
    "CREATE VIEW log AS WITH RECURSIVE r(seq) AS "
    "(SELECT 1 UNION ALL SELECT seq + 1 FROM r) SELECT seq, 'record' AS kind, "
    "1 AS body, 1 AS count, NULL AS target, '' AS hash FROM r"
)
LOOSE = (
    "CREATE TABLE log (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, "
    "run INTEGER, body INTEGER NOT NULL, count REAL NOT NULL, "
    "target INTEGER, charge TEXT, time INTEGER NOT NULL, hash TEXT NOT NULL)"
)
OTHER_TABLES = {
    "trigger": "CREATE TRIGGER forget AFTER INSERT ON log BEGIN "
    "DELETE FROM log WHERE seq = 1; END",
    "view": "CREATE VIEW more AS SELECT 1",
    "table": "CREATE TABLE more (x)",
    "index": "CREATE INDEX more ON log (kind)",
    "column": "ALTER TABLE log ADD COLUMN more TEXT",
    "missing": "DROP TABLE bodies",
    "unmarked": "DROP TABLE meta",
    "renamed": "ALTER TABLE log RENAME TO other",
    "endless view": f"DROP TABLE log; {ENDLESS}",
    "loose table": f"DROP TABLE log; {LOOSE}; "
    "INSERT INTO log VALUES (1, 'record', NULL, 1, 5.5, NULL, NULL, 0, '')",
}


@pytest.mark.parametrize("script", OTHER_TABLES.values(), ids=OTHER_TABLES)
def test_other_tables_are_refused_before_one_is_read(path, script) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)

    def is_refused() -> bool:
        signal.alarm(int(HUNG_SECONDS))  # A view without end is not read.
        for mode in ("a", "r"):
            with pytest.raises(LedgerFormatError, match="its tables only"):
                PrivacyLedger.open(path, mode=mode)
        return True

    assert in_a_fork(is_refused) == 0


def test_tables_that_changed_later_are_found(path) -> None:
    with PrivacyLedger.open(path, mode="r") as ledger:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(OTHER_TABLES["trigger"])

        with pytest.raises(LedgerFormatError, match="forget"):
            ledger.verify()


def forge(path: Path, header: str, *bodies: str) -> None:
    """Writes a ledger in which every hash is right."""
    connection = schema.new_database(header)
    for body in bodies:
        log.begin(connection)
        log.append_record(connection, log.Rounds(body), 1)
        log.finish(connection, "")
    path.write_bytes(connection.serialize())
    connection.close()


HEADER = Header("d").as_text()
BODY = text_from_round(Round(FullDataset(), (GaussianSum("g", 1.0, 4.0),)))


def test_a_forged_ledger_that_could_be_written_passes(tmp_path) -> None:
    """The control of the tests below."""
    forge(tmp_path / "l.db", HEADER, BODY)

    with PrivacyLedger.open(tmp_path / "l.db", mode="r") as ledger:
        assert ledger.verify()[:2] == (1, 1)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{}",
        "[" * 100_000,
        '{"queries":' * 100_000,
        BODY.replace("gaussian_sum", "guessed_sum"),
        BODY.replace("4.0", "-4.0"),
        BODY.replace("4.0", "NaN"),
        BODY.replace("4.0", "4.00"),
        BODY.replace(":", ": "),
        BODY.replace('"seeded":false', '"seeded":0'),
    ],
    ids=range(10),
)
def test_rows_that_nobody_can_have_written_are_errors(tmp_path, body) -> None:
    forge(tmp_path / "l.db", HEADER, BODY, body)

    for mode in ("a", "r"):
        with pytest.raises(LedgerFormatError):
            PrivacyLedger.open(tmp_path / "l.db", mode=mode)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "{}",
        "[" * 100_000,
        '{"dataset":' * 100_000,
        HEADER.replace(":", ": "),
        HEADER.replace('"format_version":4', '"format_version":3'),
        HEADER.replace('"format_version":4', '"format_version":4.0'),
        HEADER.replace('"generator":"chacha20",', ""),
        HEADER.replace('"chacha20"', '"philox"'),
        HEADER.replace('"unit":"example"', '"unit":5.5'),
        HEADER.replace('"unit"', '"unit":"users","unit"'),
    ],
    ids=range(11),
)
def test_headers_that_nobody_can_have_written_are_errors(
    tmp_path, header
) -> None:
    assert header != HEADER
    forge(tmp_path / "l.db", header, BODY)

    for mode in ("a", "r"):
        with pytest.raises(LedgerFormatError, match="header"):
            PrivacyLedger.open(tmp_path / "l.db", mode=mode)


@pytest.mark.parametrize(
    "change",
    [
        {"count": 5.5},
        {"count": True},
        {"seq": 1.0},
        {"target": 0.0},
        {"run": 0.0},
        {"time": 0.0},
    ],
)
def test_numbers_that_are_no_integers_are_found(change) -> None:
    """The columns let none in, but the bytes of a file may hold them."""
    row = Row(1, "record", None, BODY, 5, None, None, 0, "")._replace(**change)
    meta = chain.first_meta(HEADER)
    digest = chain.hash_of(chain.hash_before(meta, None), *row[:-1])

    with pytest.raises(LedgerIntegrityError, match="not an integer"):
        chain.verify([row._replace(hash=digest)], meta)
