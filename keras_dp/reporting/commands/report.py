"""`keras-dp report`: the rounds of a ledger and their epsilon."""

import argparse

from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.report import make_report

HELP = "print the rounds of a ledger and their epsilon"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add_file(parser)
    arguments.add_delta(parser)
    arguments.add_neighbours(parser)
    arguments.add_group_size(parser)
    parser.add_argument(
        "--all", action="store_true", help="print epsilon by every accountant"
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object"
    )


def answer(options: argparse.Namespace) -> str:
    """Returns the report."""
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        report = make_report(
            ledger,
            delta=options.delta,
            neighbours=options.neighbours,
            group_size=options.group_size,
        )
    if options.json:
        return report.as_json()
    return report.as_text(every_accountant=options.all)
