"""The arguments of all commands, checked as they are read."""

import argparse
import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

from keras_dp import _check
from keras_dp._version import __version__
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.reporting.document import FORMS, Document


class Command(NamedTuple):
    """A command of `keras-dp`, with a phrase that says what it does."""

    words: str
    arguments: tuple[str, ...]
    answer: Callable[[argparse.Namespace], Document]


def file_name(text: str) -> str:
    """Returns the name of a file, which does not look like a URL."""
    if _check.looks_like_url(text):
        raise argparse.ArgumentTypeError(
            f"must be the name of a file, not {_check.shown(text)}"
        )
    return text


def number(
    kind: type[int] | type[float],
    rule: str,
    holds: Callable[[float], bool],
) -> Callable[[str], float]:
    """Returns what reads a number for which a rule holds."""

    def read(text: str) -> float:
        with contextlib.suppress(ValueError):
            found = kind(text)
            if holds(found):
                return found
        raise argparse.ArgumentTypeError(f"must be {rule}, not {text!r}")

    return read


count = number(int, "a whole number >= 1", lambda x: x >= 1)
positive = number(float, "a number > 0", lambda x: 0 < x < math.inf)
delta = number(float, "a number in (0, 1)", lambda x: 0 < x < 1)


def _argument(flag: str, words: str, **options: Any) -> dict[str, Any]:
    """Returns what argparse is told of an argument."""
    return {"flag": flag, "help": words, **options}


# By a short name, since commands mean different things by one flag.
_ARGUMENTS = {
    "file": _argument("file", "a ledger file"),
    "delta of N units": _argument(
        "--delta", "below 1/N for N units (default: N^-1.1)", type=delta
    ),
    "planned delta": _argument(
        "--delta",
        "in (0, 1), such as 1e-5 (default: the smallest that a plan or an "
        "account of the ledger names)",
        type=delta,
    ),
    "delta of an account": _argument("--delta", "in (0, 1)", type=delta),
    "target": _argument(
        "--epsilon", "the target", type=positive, required=True
    ),
    "epsilon of an account": _argument(
        "--epsilon", "its promise", type=positive
    ),
    "neighbours": _argument(
        "--neighbours",
        "the adjacency relation (default: the strongest that all rounds "
        "support)",
        choices=get_args(Neighbours),
    ),
    "units": _argument(
        "--units",
        "how many units are protected together (default: 1)",
        type=count,
        default=1,
    ),
    "all": _argument(
        "--all",
        "also say what epsilon means, give it by every accountant, and check "
        "every row, as other formats than text always do",
        action="store_true",
    ),
    "records": _argument(
        "--records", "records in the data set", type=count, required=True
    ),
    "epochs": _argument(
        "--epochs",
        "epochs of the training (default: 40)",
        type=count,
        default=40,
    ),
    "batch sizes": _argument(
        "--batch-sizes",
        "expected sizes of a sample (default: powers of two up to a quarter of "
        "the records)",
        type=count,
        nargs="+",
    ),
    "ledger": _argument(
        "--ledger",
        "a ledger whose rounds the target counts, too (default: none)",
        metavar="FILE",
    ),
    "rows per unit": _argument(
        "--rows-per-unit",
        "records that one unit has at most, for all of which epsilon is "
        "(default: 1)",
        type=count,
        default=1,
    ),
    "open": _argument("--open", "open this account", metavar="NAME"),
    "order": _argument(
        "--order",
        "of the Rényi filter, > 1 (default: the one with the most room)",
        type=positive,
    ),
    "out": _argument(
        "--out", "a new file for the certificate", type=file_name, required=True
    ),
    "note": _argument(
        "--note", "written into the seal; nothing secret", default=""
    ),
    "key": _argument(
        "--key", "a PEM file with an Ed25519 key, to sign with", type=file_name
    ),
    "head": _argument("--head", "the head that an earlier `verify` printed"),
    "against": _argument(
        "--against",
        "a certificate that `seal` wrote, of this ledger or of an earlier "
        "state of it",
        type=file_name,
        metavar="CERTIFICATE",
    ),
    "public key": _argument(
        "--public-key",
        "the Ed25519 key that must have signed the certificate",
        metavar="HEX",
    ),
    "format": _argument(
        "--format",
        "text for a terminal, json for programs, html for a page with "
        "pictures, markdown to publish (default: text)",
        choices=FORMS,
        default="text",
    ),
}


def parser_of(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Returns what reads a command line into `command` and its arguments."""
    parser = argparse.ArgumentParser(
        prog="keras-dp",
        description="Reads and seals privacy ledgers, opens accounts, and "
        "plans trainings.",
        epilog="Exit codes: 0 done, 1 the answer could not be written, 2 wrong "
        "usage, 3 not a readable ledger, 4 the ledger contradicts itself or "
        "is not the one that was meant.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parsers = parser.add_subparsers(dest="command", required=True)
    for name, command in commands.items():
        words = command.words
        its = parsers.add_parser(
            name,
            help=words,
            description=f"{words[0].upper()}{words[1:]}.",
        )
        for argument in (*command.arguments, "format"):
            options = {**_ARGUMENTS[argument]}
            its.add_argument(options.pop("flag"), **options)
    return parser
