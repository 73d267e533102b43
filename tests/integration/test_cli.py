"""The command line, as a shell sees it."""

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from keras_dp import accountants, planning
from keras_dp.accountants.replay import Replay
from keras_dp.budgets import guarantee
from keras_dp.ledger import (
    BinaryTree,
    CorrelatedSum,
    DisjointBatches,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
)
from keras_dp.reporting import make_report, plan_document, render
from keras_dp.reporting.cli import main
from keras_dp.spending import PrivacyTarget
from keras_dp.spending.epsilon_limit import EpsilonLimit
from tests import programs

SCRIPT = Path(sys.executable).parent / "keras-dp"
MODULE = [sys.executable, "-m", "keras_dp.reporting.cli"]
# As users have it: what is written waits in a buffer.
BUFFERED = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
STEP = [GaussianSum("gradients", 1.0, 4.0)]
REPORT = ["report", "--delta", "1e-5"]
VERIFY = ["verify"]
EXPLAIN = ["explain", "--delta", "1e-5"]
AFFORD = ["afford", "--epsilon", "1", "--delta", "1e-5"]
COMMANDS = pytest.mark.parametrize(
    "command", [REPORT, VERIFY, EXPLAIN, AFFORD], ids=lambda command: command[0]
)


def written(path, *, count=100, rows=1):
    """Writes a ledger of `rows` rows, and returns its path."""
    with PrivacyLedger.open(path, dataset="clinic", unit="patient") as ledger:
        for row in range(rows):
            probability = 0.01 * (1 + row % 2)
            ledger.record(PoissonSampling(probability), STEP, count)
    return path


def edited(path, statement):
    """Runs one SQL statement on the file, behind the ledger's back."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    return path


@pytest.fixture
def ledger_file(tmp_path):
    return written(tmp_path / "clinic.ledger")


def missing(folder):
    return folder / "missing.ledger"


def a_folder(folder):
    return folder


def foreign_text(folder):
    path = folder / "notes.ledger"
    path.write_text("Dear diary, " * 50)
    return path


def empty(folder):
    path = folder / "empty.ledger"
    path.touch()
    return path


def scribbled(folder):
    """A page of the file is overwritten: SQLite says so in several lines."""
    path = written(folder / "scribbled.ledger", rows=60)
    with path.open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(b"\x0d" + os.urandom(50))
    return path


def newer(folder):
    path = written(folder / "newer.ledger")
    return edited(path, "PRAGMA user_version = 5")


def tampered(folder):
    path = written(folder / "tampered.ledger")
    return edited(path, "UPDATE log SET count = 1")


# Exit code, and what the message of the ledger is about.
FAILURES = [
    (missing, 3, "There is no file "),
    (a_folder, 3, "must be a ledger file|directory"),
    (foreign_text, 3, "not a ledger"),
    (empty, 3, "empty|not a ledger"),
    (scribbled, 3, "corrupt"),
    (newer, 3, "format 4"),
    (tampered, 4, "Row 1 .*not as it was written"),
]


@COMMANDS
@pytest.mark.parametrize(
    ("make", "code", "message"),
    FAILURES,
    ids=[make.__name__ for make, _, _ in FAILURES],
)
def test_a_file_that_cannot_be_used_is_one_line_of_stderr(
    make, code, message, command, tmp_path, capsys
) -> None:
    path = make(tmp_path)
    before = path.read_bytes() if path.is_file() else None

    result = main([*command, str(path)])

    out, err = capsys.readouterr()
    assert (result, out) == (code, "")
    assert re.fullmatch(r"keras-dp: [^\n]+\n", err)
    assert re.search(message, err)
    assert before == (path.read_bytes() if path.is_file() else None)


@pytest.mark.full
@pytest.mark.parametrize(
    ("program", "make", "code"),
    [
        ([str(SCRIPT)], written, 0),
        (MODULE, None, 2),
        ([str(SCRIPT)], missing, 3),
        (MODULE, tampered, 4),
    ],
    ids=["0", "2", "3", "4"],
)
def test_a_shell_gets_the_exit_code(program, make, code, tmp_path) -> None:
    folder = tmp_path / "a.ledger" if make is written else tmp_path
    arguments = ["report"] if make is None else [*REPORT, str(make(folder))]

    process = programs.run(*program, *arguments)

    assert process.returncode == code
    assert bool(process.stdout) is (code == 0)
    assert bool(process.stderr) is (code != 0)
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nothing"],
        ["report", "--delta", "1e-5"],
        ["report", "FILE", "--delta", "0"],
        ["report", "FILE", "--delta", "1"],
        ["report", "FILE", "--delta", "nan"],
        ["report", "FILE", "--delta", "-1e-5"],
        ["report", "FILE", "--delta", "small"],
        ["report", "FILE", "--delta", "1e-5", "--neighbours", "bounded"],
        ["report", "FILE", "FILE", "--delta", "1e-5"],
        ["afford", "FILE", "--delta", "1e-5"],
        ["afford", "FILE", "--delta", "1e-5", "--epsilon", "0"],
        ["verify"],
        ["verify", "FILE", "--format", "pdf"],
        ["report", "FILE", "--delta", "1e-5", "--units", "0"],
        ["report", "FILE", "--delta", "1e-5", "--units", "two"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments, ledger_file, capsys) -> None:
    arguments = [str(ledger_file) if a == "FILE" else a for a in arguments]

    with pytest.raises(SystemExit) as raised:
        main(arguments)

    out, err = capsys.readouterr()
    assert (raised.value.code, out) == (2, "")
    assert err.startswith("usage: keras-dp")


@pytest.mark.parametrize("neighbours", ["add_or_remove_one", "replace_one"])
def test_report_prints_the_report(neighbours, ledger_file, capsys) -> None:
    options = ["--delta", "1e-7", "--neighbours", neighbours]

    codes = [
        main(["report", str(ledger_file), *options, *extra])
        for extra in (["--all"], ["--format", "json"])
    ]

    with PrivacyLedger.open(ledger_file, mode="r") as ledger:
        report = make_report(
            ledger, delta=1e-7, neighbours=neighbours, details=True
        )
        epsilon = accountants.RDP().epsilon(
            ledger, delta=1e-7, neighbours=neighbours
        )
    out, err = capsys.readouterr()
    assert (codes, err) == ([0, 0], "")
    text = str(report)
    assert out == f"{text}\n{render(report, 'json')}\n"
    content = json.loads(out[len(text) :])
    assert content["epsilon"]["RDP"] == epsilon
    shown = float(re.search(r"RDP +<= (\S+)", out)[1])
    assert epsilon <= shown < epsilon + 1.1e-4  # Four decimals, rounded up.


def test_verify_prints_the_head_and_knows_it(tmp_path, capsys) -> None:
    path = written(tmp_path / "a.ledger", rows=3)
    with PrivacyLedger.open(path, mode="r") as ledger:
        head = ledger.verify().head

    untold = main(["verify", str(path)])
    same = main(["verify", str(path), "--head", f"{head.upper()} "])
    written(path)
    grown = main(["verify", str(path), "--head", head])

    out, err = capsys.readouterr()
    assert (untold, same, grown) == (0, 0, 4)
    assert re.fullmatch("[0-9a-f]{64}", head)
    assert out.startswith(f"OK: 3 rows, 300 rounds, head\n    {head}\n")
    assert "nothing changed" in out
    assert re.fullmatch(r"keras-dp: `--head` must [^\n]+Received[^\n]+\n", err)
    assert head in err


class TestAfford:
    """How many more rounds a target leaves room for."""

    @pytest.mark.parametrize("units", [1, 3])
    def test_the_rounds_fit_and_one_more_does_not(
        self, units, tmp_path, capsys
    ) -> None:
        path = tmp_path / "a.ledger"
        with PrivacyLedger.open(path, dataset="d", rows_per_unit=2) as ledger:
            ledger.record(PoissonSampling(0.001), STEP, 100)

        code = main([*AFFORD, str(path), "--units", str(units)])

        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        count = int(
            re.search(r"^Left: ([\d,]+) ", out, re.M)[1].replace(",", "")
        )
        assert "Theorem: composed as if fixed in advance" in out
        for more, fits in [(count, True), (count + 1, False)]:
            with PrivacyLedger.open(path, mode="r") as ledger:
                replay = Replay(ledger).plus(
                    [(Round(PoissonSampling(0.001), tuple(STEP)), more)]
                )
            claim = replay.claim(delta=1e-5, units=units)
            assert (claim.epsilon <= 1) == fits

    def test_counts_what_reports_and_fit_count(self, tmp_path, capsys) -> None:
        path, step = tmp_path / "a", Round(PoissonSampling(0.01), tuple(STEP))
        target = PrivacyTarget(1.0, 1e-5)
        with PrivacyLedger.open(path, dataset="clinic") as ledger:
            with ledger.start_run("stopped", plan=[(step, 9_000)]) as run:
                run.cover(step)
            limit = EpsilonLimit(target, ledger)
            left = limit.allowed(step, 100_000)
            spent = guarantee(ledger, delta=1e-5).claim.epsilon

        assert main([*AFFORD, str(path), "--format", "json"]) == 0

        found = json.loads(capsys.readouterr().out)
        assert found["rounds_left"] == left
        assert found["held"]["epsilon"] == spent

    @pytest.mark.parametrize(
        ("sampling", "queries"),
        [
            (None, None),
            (
                FullDataset(),
                [CorrelatedSum("row", 1.0, 4.0, BinaryTree(), 9, "c0ffee")],
            ),
            (DisjointBatches("a pass"), STEP),
        ],
        ids=["empty", "mechanism", "pass"],
    )
    def test_a_question_without_an_answer_is_2(
        self, sampling, queries, tmp_path, capsys
    ) -> None:
        path = tmp_path / "a.ledger"
        with PrivacyLedger.open(path, dataset="d") as ledger:
            if queries:
                ledger.record(sampling, queries)

        code = main([*AFFORD, str(path)])

        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        assert re.fullmatch(r"keras-dp: [^\n]+ Received: [^\n]+\n", err)


@pytest.mark.parametrize("rows", [1, 5])
def test_plan_is_for_all_rows_of_a_unit(rows, capsys) -> None:
    options = "--records 3000 --epsilon 3 --delta 1e-4 --epochs 20"
    sizes = f"--batch-sizes 64 256 --rows-per-unit {rows}"

    code = main(["plan", *options.split(), *sizes.split()])

    expected = planning.plan(
        3000,
        target_epsilon=3.0,
        delta=1e-4,
        epochs=20,
        batch_sizes=[64, 256],
        units=rows,
    )
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert out.rstrip() == str(plan_document(expected))


def test_plan_counts_the_rounds_of_a_ledger(ledger_file, capsys) -> None:
    options = "plan --records 3000 --epsilon 30 --delta 1e-4 --epochs 20"
    more = ["--batch-sizes", "64", "--format", "json"]
    noises = []
    for ledger in ([], ["--ledger", str(ledger_file)]):
        assert main([*options.split(), *more, *ledger]) == 0
        (row,) = json.loads(capsys.readouterr().out)["plans"]
        noises.append(row["noise_multiplier"])
    with PrivacyLedger.open(ledger_file, mode="r") as held:
        expected = planning.plan(
            3000,
            target_epsilon=30.0,
            delta=1e-4,
            epochs=20,
            batch_sizes=[64],
            ledger=held,
        )
    main([*options.split(), "--ledger", str(ledger_file)])

    assert noises[1] > noises[0]
    assert noises[1] == expected.rows[0].noise_multiplier
    assert f"ledger={str(ledger_file)!r})" in capsys.readouterr().out


class TestAReaderOfThePipeWhoLeaves:
    """As `head -1` does."""

    @pytest.mark.full
    @COMMANDS
    def test_before_the_first_line_sees_no_traceback(
        self, command, ledger_file
    ) -> None:
        read, write = os.pipe()
        os.close(read)
        process = subprocess.run(
            [SCRIPT, *command, str(ledger_file)],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
            env=BUFFERED,
        )
        os.close(write)

        assert process.stderr == b""
        assert process.returncode == 0


@pytest.mark.full
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_an_answer_that_cannot_be_written_is_1(ledger_file) -> None:
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [SCRIPT, *VERIFY, str(ledger_file)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=BUFFERED,
        )

    assert process.returncode == 1
    assert re.fullmatch(r"keras-dp: [^\n]*space[^\n]*\n", process.stderr)


@pytest.mark.full
def test_a_terminal_without_unicode_is_answered(tmp_path) -> None:
    path = tmp_path / "a.ledger"
    PrivacyLedger.open(path, dataset="clinique-été").close()

    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    process = programs.run(SCRIPT, *REPORT, path, env=environment)

    assert process.returncode == 0
    assert "Data set clinique-\\xe9t\\xe9," in process.stdout
