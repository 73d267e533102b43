"""`keras-dp explain`: what epsilon means for one person."""

import argparse

from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.explanation import explain

HELP = "say in sentences what epsilon means for one person"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add_file(parser)
    arguments.add_delta(parser)
    arguments.add_neighbours(parser)
    arguments.add_group_size(parser)


def answer(options: argparse.Namespace) -> str:
    """Returns the explanation."""
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        return explain(
            ledger,
            delta=options.delta,
            neighbours=options.neighbours,
            group_size=options.group_size,
        ).as_text()
