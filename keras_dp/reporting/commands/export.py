"""`keras-dp export`: a ledger as JSON, its rounds as CSV."""

import argparse
import io

from keras_dp.interchange import write_csv
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.contradictions import Answer

HELP = "write a ledger as JSON, or its rounds as CSV"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add_file(parser)
    parser.add_argument(
        "--to",
        choices=("json", "csv"),
        required=True,
        help="json: the whole ledger without loss, for `import`; csv: its "
        "rounds",
    )
    parser.add_argument(
        "--out",
        type=arguments.file_name,
        help="a file (default: standard output)",
    )


def answer(options: argparse.Namespace) -> Answer:
    """Returns the text, or writes it.

    Raises:
        OutputError: The file could not be written.
    """
    text = io.StringIO()
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        if options.to == "json":
            text.write(ledger.to_json())
        else:
            write_csv(ledger, text)
    written = text.getvalue().rstrip("\n")
    if options.out is None:
        return Answer(written)
    arguments.write(options.out, written + "\n")
    return Answer(f"Wrote {options.out}")
