"""Arguments that several commands have, checked as they are read."""

import argparse
import math
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

from keras_dp import _check
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.budgets import budget_of
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.document import FORMS, Document


class Command(NamedTuple):
    """A command of `keras-dp`, with a phrase that says what it does."""

    words: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    answer: Callable[[argparse.Namespace], Document]


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
    "delta of N units": (
        "--delta",
        {"type": delta, "help": "below 1/N for N units (default: N^-1.1)"},
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
    "format": (
        "--format",
        {
            "choices": FORMS,
            "default": "text",
            "help": "text for a terminal, json for programs, html for a page "
            "with pictures, markdown to publish (default: text)",
        },
    ),
}


def add(parser: argparse.ArgumentParser, *names: str) -> None:
    """Adds arguments that several commands have."""
    for name in names:
        flag, options = _ARGUMENTS[name]
        parser.add_argument(flag, **options)


def question(
    options: argparse.Namespace, ledger: PrivacyLedger
) -> dict[str, Any]:
    """Returns the delta, the relation and the units that are asked about."""
    return {
        "delta": delta_for(options.delta, ledger),
        "neighbours": options.neighbours,
        "units": options.units,
    }


def delta_for(given: float | None, ledger: PrivacyLedger) -> float:
    """Returns the given delta, or the smallest that a ledger names."""
    named = [run.delta for run in ledger.runs if run.delta is not None]
    named += [budget_of(each.account).delta for each in ledger.accounts]
    if given is None and not named:
        raise ValueError(
            "`--delta` must be given: no plan and no account of the ledger "
            "names one. Received: nothing. Choose one below 1/N for N units."
        )
    return min(named) if given is None else given


def existing(path: str) -> PrivacyLedger:
    """Opens a ledger for writing, and creates none."""
    PrivacyLedger.open(path, mode="r").close()
    return PrivacyLedger.open(path)
