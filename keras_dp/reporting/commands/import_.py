"""`keras-dp import`: a ledger out of the JSON that `export` wrote."""

import argparse
from pathlib import Path

from keras_dp.errors import LedgerFormatError
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.contradictions import Answer

HELP = "make a ledger of the JSON that `export` wrote"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    parser.add_argument(
        "json",
        type=arguments.file_name,
        help="a file that `export --to json` wrote",
    )
    parser.add_argument(
        "--out",
        type=arguments.file_name,
        required=True,
        help="a new file for the ledger",
    )


def answer(options: argparse.Namespace) -> Answer:
    """Returns the size and the head of the copy.

    Raises:
        LedgerFormatError: The file holds no ledger.
        LedgerIntegrityError: Its rows are not those that were written.
        LedgerWriteError: The new file exists, or cannot be written.
    """
    try:
        text = Path(options.json).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise LedgerFormatError(
            f"The file {options.json!r} holds no ledger as JSON: {error}. Give "
            "a file that `keras-dp export --to json` wrote."
        ) from error
    with PrivacyLedger.from_json(text, options.out) as ledger:
        found = ledger.verify()
    return Answer(
        f"OK: {found.rows} rows, {found.rounds} rounds, head {found.head}\n"
        f"Wrote {options.out}, with the same rows and hashes."
    )
