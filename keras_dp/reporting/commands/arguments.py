"""Arguments that several commands have, checked as they are read."""

import argparse
import math
from pathlib import Path
from typing import Any, get_args

from keras_dp import _check
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.budgets import budget_of
from keras_dp.errors import OutputError
from keras_dp.ledger import PrivacyLedger

# Every database of SQLite begins with these bytes.
_SQLITE = b"SQLite format 3\0"


def file_name(text: str) -> str:
    """Returns the name of a file, which does not look like a URL."""
    if _check.looks_like_url(text):
        raise argparse.ArgumentTypeError(
            f"must be the name of a file, not {_check.shown(text)}"
        )
    return text


def count(text: str) -> int:
    """Returns a whole number >= 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(
            f"must be a whole number >= 1, not {text!r}"
        )
    return number


def positive(text: str) -> float:
    """Returns a finite number > 0."""
    number = _number(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number > 0, not {text!r}")
    return number


def delta(text: str) -> float:
    """Returns a number in (0, 1)."""
    number = _number(text)
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(
            f"must be a number in (0, 1), not {text!r}"
        )
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


# By a short name: the name on the command line, and what argparse is told.
_ARGUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "file": ("file", {"help": "a ledger file"}),
    "delta": (
        "--delta",
        {"type": delta, "required": True, "help": "in (0, 1), such as 1e-5"},
    ),
    "planned delta": (
        "--delta",
        {
            "type": delta,
            "help": "in (0, 1), such as 1e-5 (default: the smallest that a "
            "plan or an account of the ledger names)",
        },
    ),
    "epsilon": (
        "--epsilon",
        {"type": positive, "required": True, "help": "the target"},
    ),
    "neighbours": (
        "--neighbours",
        {
            "choices": get_args(Neighbours),
            "help": "the adjacency relation (default: the strongest that all "
            "rounds support)",
        },
    ),
    "units": (
        "--units",
        {
            "type": count,
            "default": 1,
            "help": "how many units are protected together (default: 1)",
        },
    ),
    "json": ("--json", {"action": "store_true", "help": "print a JSON object"}),
}
# A ledger, and the guarantee that is asked of it.
GUARANTEE = ("file", "planned delta", "neighbours", "units")


def add(parser: argparse.ArgumentParser, *names: str) -> None:
    """Adds arguments that several commands have."""
    for name in names:
        flag, options = _ARGUMENTS[name]
        parser.add_argument(flag, **options)


def delta_for(given: float | None, ledger: PrivacyLedger) -> float:
    """Returns the given delta, or the smallest that a ledger names.

    Raises:
        ValueError: Neither is there.
    """
    named = [run.delta for run in ledger.runs if run.delta is not None]
    named += [
        budget_of(each.account).delta
        for each in ledger.accounts
        if each.account.parent is None
    ]
    if given is None and not named:
        raise ValueError(
            "`--delta` must be given: no plan and no account of the ledger "
            "names one. Received: nothing. Choose one below 1/N for N units."
        )
    return min(named) if given is None else given


def existing(path: str) -> PrivacyLedger:
    """Opens a ledger for writing that exists.

    Raises:
        FileNotFoundError: There is none.
    """
    PrivacyLedger.open(path, mode="r").close()
    return PrivacyLedger.open(path)


def write(path: str, text: str) -> None:
    """Writes a file.

    Raises:
        OutputError: It cannot be written, or a ledger has this name.
    """
    check_replaceable(path)
    try:
        Path(path).write_text(text, "utf-8", newline="")
    except OSError as error:
        raise OutputError(
            f"The file {path!r} could not be written: {error.strerror}."
        ) from error


def check_replaceable(path: str) -> None:
    """Raises if a ledger, or another database of SQLite, has this name.

    Raises:
        OutputError: One has.
    """
    if not Path(path).is_file():
        return
    with Path(path).open("rb") as file:
        if file.read(len(_SQLITE)) == _SQLITE:
            raise OutputError(
                f"The file {path!r} is a ledger, or another database. It was "
                "not replaced. Choose another name."
            )
