"""`keras-dp export`: the rounds of a ledger as CSV."""

import argparse
import io

from keras_dp.interchange import write_csv
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.contradictions import Answer

HELP = "write the rounds of a ledger as CSV"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add(parser, "file")
    parser.add_argument(
        "--out",
        type=arguments.file_name,
        help="a file (default: standard output)",
    )


def answer(options: argparse.Namespace) -> Answer:
    """Returns the table, or writes it.

    Raises:
        OutputError: The file could not be written.
    """
    text = io.StringIO()
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        write_csv(ledger, text)
    if options.out is None:
        return Answer(text.getvalue().rstrip("\n"))
    arguments.write(options.out, text.getvalue())
    return Answer(f"Wrote {options.out}")
