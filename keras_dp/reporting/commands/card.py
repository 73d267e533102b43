"""`keras-dp card`: a model card, filled from the ledger."""

import argparse

from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.model_card import model_card
from keras_dp.reporting.report import make_report

HELP = "print a model card in Markdown, filled from the ledger"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add(parser, *arguments.GUARANTEE)
    parser.add_argument(
        "--out",
        type=arguments.file_name,
        help="write the card to this file, such as README.md",
    )


def answer(options: argparse.Namespace) -> str:
    """Returns the card, or writes it.

    Raises:
        OutputError: The file could not be written.
    """
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        report = make_report(
            ledger,
            delta=arguments.delta_for(options.delta, ledger),
            neighbours=options.neighbours,
            accountants=(),
            units=options.units,
            details=True,
        )
    card = model_card(report)
    if options.out:
        arguments.write(options.out, f"{card}\n")
        card = f"Wrote {options.out}."
    return card
