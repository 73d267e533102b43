"""Files that somebody edited: one short line says so, and nothing else.

Certificates and the rows of ledgers are edited at random places. Most of the
ledgers get new hashes afterwards, as a forger would compute them: only then are
the texts in their rows read. Every command must answer, or fail as documented.
"""

import json
import random
import re
import sqlite3
from pathlib import Path

import pytest

from keras_dp import budgets
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PrivacyLedger,
    Round,
)
from keras_dp.ledger.places import schema
from keras_dp.ledger.rows import chain, log
from keras_dp.ledger.rows.codec import canonical
from keras_dp.ledger.rows.row import Row, counted
from keras_dp.reporting.cli import main
from keras_dp.spending import RunLimits

DELTA = ["--delta", "1e-5"]
STEP = Round(FullDataset(), (GaussianSum("ages", 1.0, 40.0),))
LONG = 100_000
VALUES = [
    *(None, True, -1, 0, 1.5, 1e308, 1e-320, 10**18, 10**30, 10**400),
    *("", "inf", "x" * LONG, "\x1b[2K\u202e\nOK: 3 rows", "\udc80"),
    *([], {}, [[]], {"kind": "x"}, {"kind": ["x"]}, [0] * 1000),
    json.loads("[" * 200 + "]" * 200),
]


def a_ledger() -> dict:
    """Returns the rows and the table `meta` of a ledger."""
    ledger = PrivacyLedger.in_memory(dataset="d", unit="patient")
    budgets.open_account(ledger, "all", budgets.RenyiFilter(3.0, 1e-5))
    run = ledger.start_run("a", description="first", limits=RunLimits(ledger))
    run.plan([(STEP, 30)])
    run.cover(Round(STEP.sampling, STEP.queries), 30)
    run.settle(20)
    run.finish("stopped")
    ledger.seal("June")
    with ledger._handle.reading() as database:
        rows = [list(row) for row in log.rows(database)]
        return {"meta": log.meta(database), "rows": rows}


def written(content: dict, path: Path) -> bool:
    """Writes a ledger file with these rows; returns whether SQLite takes it."""
    try:
        database = schema.new_database(content["meta"]["header"])
        rows = [Row(*values) for values in content["rows"]]
        log.copy(database, rows, content["meta"])
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return False
    except sqlite3.Error:
        return False
    path.write_bytes(database.serialize())
    return True


def paths_of(content: object, before: tuple = ()) -> list[tuple]:
    """Returns the places of all values in a nest of lists and objects."""
    found = [before] if before else []
    if isinstance(content, dict | list):
        pairs = content.items() if isinstance(content, dict) else None
        for key, value in pairs or enumerate(content):
            found += paths_of(value, (*before, key))
    return found


def edited(content: object, chance: random.Random) -> object:
    """Returns a copy in which one value is another one, or is missing."""
    copy = json.loads(json.dumps(content))
    *parents, last = chance.choice(paths_of(copy))
    place = copy
    for key in parents:
        place = place[key]
    if chance.random() < 0.1:
        del place[last]
    else:
        place[last] = chance.choice(VALUES)
    return copy


def with_new_hashes(content: dict) -> dict:
    """Returns a ledger with the hashes and sums that fit its rows."""
    meta, previous, rows = content["meta"], None, []
    for values in content["rows"]:
        row = Row(*values)
        digest = chain.hash_of(chain.hash_before(meta, previous), *row[:-1])
        previous = row._replace(hash=digest)
        rows.append(previous)
    meta["rows"] = str(len(rows))
    meta["total"] = str(sum(each.count for each in counted(rows)))
    meta["head"] = chain.head(meta, previous)
    return {**content, "rows": [list(row) for row in rows]}


def forged(content: dict, chance: random.Random) -> dict:
    """Returns a ledger, one text of which was edited, with new hashes."""
    content = json.loads(json.dumps(content))
    rows = content["rows"]
    place = chance.choice(["header", "row", "body", "body", "body", "charge"])
    row = chance.choice(rows)
    if place == "header":
        header = edited(json.loads(content["meta"]["header"]), chance)
        content["meta"]["header"] = canonical(header)
    elif place == "row":
        row[chance.randrange(len(row))] = chance.choice(VALUES)
    elif place == "body" or row[6] is None:
        old, new = row[3], canonical(edited(json.loads(row[3]), chance))
        for each in rows:  # A reservation, and what settles it.
            each[3] = new if each[3] == old else each[3]
    else:
        row[6] = canonical(edited(json.loads(row[6]), chance))
    try:
        return with_new_hashes(content)
    except (TypeError, ValueError, AttributeError):
        return content  # No hash fits a row of such types.


def answered(capsys, *command: object) -> int:
    """Runs a command, and returns its exit code; checks what it says."""
    code = main([str(part) for part in command])
    out, err = capsys.readouterr()
    assert code in range(6)
    assert len(err) < 2500
    if code in (2, 3, 4):
        assert re.fullmatch(r"keras-dp: [^\n]+\n", err)
        assert err.rstrip("\n").isprintable()
    assert out.replace("\n", "").isprintable()
    return code


def ask_all(capsys, path: Path) -> None:
    """Asks a ledger all that the command line can ask."""
    for command in ("verify", "report", "runs", "explain", "budget"):
        options = [] if command in ("verify", "budget") else DELTA
        answered(capsys, command, path, *options)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("run", {"account": 3}),
        ("run", {"name": "x" * LONG, "account": ["x" * LONG]}),
        ("account", {"parent": "nobody"}),
        ("account", {"terms": {"kind": ["gaussian"]}}),
        ("account", {"terms": {"kind": "gaussian_filter", "epsilon": []}}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_forged_statement_is_one_line(tmp_path, capsys, kind, change) -> None:
    content = a_ledger()
    for row in content["rows"]:
        if row[1] == kind:
            row[3] = canonical({**json.loads(row[3]), **change})
    path = tmp_path / "l.db"
    assert written(with_new_hashes(content), path)
    ask_all(capsys, path)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_an_edited_ledger_is_one_line(tmp_path, capsys, seed) -> None:
    chance = random.Random(seed)
    content = a_ledger()
    accepted = 0
    for number in range(60):
        path = tmp_path / f"{number}.db"
        change = edited if number % 6 == 0 else forged
        if written(change(content, chance), path):
            accepted += answered(capsys, "verify", path) == 0
            ask_all(capsys, path)
    assert accepted > 1  # Such forgeries are read by the commands.


def test_the_tests_above_see_other_errors(
    tmp_path, capsys, monkeypatch
) -> None:
    """Control: an exception that is none of ours, and a message too long."""
    path = tmp_path / "l.db"
    PrivacyLedger.open(path, dataset="d").close()

    def fail_with(error: Exception) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("keras_dp.reporting.commands.make_report", fail)
        answered(capsys, "report", path, *DELTA)

    for error in (KeyError("x"), RecursionError(), OverflowError()):
        with pytest.raises(type(error)):
            fail_with(error)
    fail_with(ValueError("x" * LONG))
    monkeypatch.setattr("keras_dp.reporting.cli._LONGEST_MESSAGE", LONG)
    with pytest.raises(AssertionError):
        fail_with(ValueError("x" * LONG))
