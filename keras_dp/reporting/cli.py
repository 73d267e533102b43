"""The command line: `keras-dp report`, `keras-dp verify`, `keras-dp plan`.

Exit codes: 0 done; 1 the answer could not be written; 2 wrong usage; 3 the file
is not a ledger that can be read (missing, foreign, corrupt, newer); 4 its rows
contradict each other. Messages about failures go to the standard error stream,
as one line. A reader who leaves the pipe early has what it wanted: 0.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any, get_args

from keras_dp._version import __version__
from keras_dp.accountants import plan
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.errors import (
    CalibrationError,
    LedgerError,
    LedgerIntegrityError,
    UnsupportedEventError,
)
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.plan_report import plot_plans
from keras_dp.reporting.report import make_report

OK, UNWRITTEN, USAGE, UNREADABLE, INCONSISTENT = 0, 1, 2, 3, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, and returns its exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "plan":
        return _planned(options)
    try:
        with PrivacyLedger.open(options.file, mode="r") as ledger:
            if options.command == "verify":
                text = _verified(ledger)
            else:
                report = make_report(
                    ledger, delta=options.delta, neighbours=options.neighbours
                )
                text = (
                    report.as_json()
                    if options.json
                    else report.as_text(every_accountant=options.all)
                )
    except LedgerIntegrityError as error:
        return _fail(INCONSISTENT, error)
    except (LedgerError, OSError) as error:
        return _fail(UNREADABLE, error)
    return _answer(text)


def _planned(options: argparse.Namespace) -> int:
    try:
        found = plan(
            options.records,
            target_epsilon=options.epsilon,
            delta=options.delta,
            epochs=options.epochs,
            batch_sizes=options.batch_sizes,
            parameters=options.parameters,
            neighbours=options.neighbours,
        )
    except (CalibrationError, UnsupportedEventError, ValueError) as error:
        return _fail(USAGE, error)
    if options.plot:
        try:
            plot_plans([found]).savefig(options.plot)
        except (ImportError, OSError, ValueError) as error:
            return _fail(UNWRITTEN, error)
    return _answer(found.as_text())


def _verified(ledger: PrivacyLedger) -> str:
    summary = ledger.verify()
    return (
        f"OK: {summary.rows} rows, {summary.rounds} rounds, head "
        f"{summary.head}\nThe same head later means the same ledger; it "
        "changes with every round that is added."
    )


def _answer(text: str) -> int:
    if sys.stdout is None:  # As after `>&-` in a shell.
        return _fail(UNWRITTEN, OSError("standard output is closed"))
    encoding = sys.stdout.encoding or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        # Python flushes once more at its end, and must not fail again there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return OK
        return _fail(UNWRITTEN, error)
    return OK


def _fail(code: int, error: Exception) -> int:
    message = " ".join(str(error).split())  # SQLite's may have several lines.
    with contextlib.suppress(OSError):
        if sys.stderr is not None:  # As after `2>&-` in a shell.
            sys.stderr.write(f"keras-dp: {message}\n")
            sys.stderr.flush()
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="keras-dp",
        description="Reads privacy ledgers, and plans trainings.",
        epilog="Exit codes: 0 done, 1 the answer could not be written, 2 wrong "
        "usage, 3 not a readable ledger, 4 the ledger contradicts itself.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    report = commands.add_parser(
        "report", help="print the rounds of a ledger and their epsilon"
    )
    report.add_argument("file", help="a ledger file")
    report.add_argument(
        "--delta", type=_delta, required=True, help="in (0, 1), such as 1e-5"
    )
    _add_neighbours(report)
    report.add_argument(
        "--all", action="store_true", help="print epsilon by every accountant"
    )
    report.add_argument(
        "--json", action="store_true", help="print a JSON object"
    )
    verify = commands.add_parser(
        "verify", help="check that the rows of a ledger are as written"
    )
    verify.add_argument("file", help="a ledger file")
    _add_plan(commands)
    return parser


def _add_plan(commands: Any) -> None:
    planned = commands.add_parser(
        "plan", help="print the noise that a privacy target needs"
    )
    planned.add_argument(
        "--records", type=int, required=True, help="records in the data set"
    )
    planned.add_argument(
        "--epsilon", type=float, required=True, help="the target"
    )
    planned.add_argument(
        "--delta", type=_delta, required=True, help="in (0, 1), such as 1e-5"
    )
    planned.add_argument("--epochs", type=int, required=True)
    planned.add_argument(
        "--batch-sizes",
        type=int,
        nargs="+",
        required=True,
        help="expected sizes of a sample",
    )
    planned.add_argument(
        "--parameters", type=int, help="trainable ones of the model"
    )
    planned.add_argument("--plot", help="a file for the plot, such as plan.svg")
    _add_neighbours(planned)


def _add_neighbours(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--neighbours",
        choices=get_args(Neighbours),
        help="the adjacency relation (default: the strongest that all rounds "
        "support)",
    )


def _delta(text: str) -> float:
    try:
        delta = float(text)
    except ValueError:
        delta = float("nan")
    if not 0 < delta < 1:
        raise argparse.ArgumentTypeError(
            f"must be a number in (0, 1), not {text!r}"
        )
    return delta


if __name__ == "__main__":
    sys.exit(main())
