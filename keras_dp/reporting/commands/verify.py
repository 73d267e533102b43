"""`keras-dp verify`: the rows of a ledger are as they were written."""

import argparse

from keras_dp.errors import LedgerIntegrityError
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments

HELP = "check that the rows of a ledger are as written"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add_file(parser)
    parser.add_argument(
        "--head", help="the head that an earlier `verify` printed"
    )


def answer(options: argparse.Namespace) -> str:
    """Returns the size and the head of the ledger.

    Raises:
        LedgerIntegrityError: The rows contradict each other, or the head is
            not the given one.
    """
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        found = ledger.verify()
    size = f"{found.rows} rows, {found.rounds} rounds, head {found.head}"
    if options.head is None:
        return (
            f"OK: {size}\nThe same head later means the same ledger; it "
            "changes with every round that is added."
        )
    if options.head.strip().lower() != found.head:
        raise LedgerIntegrityError(
            "`--head` must be the head of the ledger. Received: "
            f"{options.head!r}, but the ledger has {size}. It is another "
            "ledger, or rounds were added, removed or changed since: "
            "`keras-dp diff` compares it with a copy of that time."
        )
    return f"OK: {size}\nThe ledger is the one with that head: nothing changed."
