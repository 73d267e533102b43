"""`keras-dp explain`: what epsilon means for one person."""

import argparse

from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.explanation import explain

HELP = "say in sentences what epsilon means for one person"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add(parser, *arguments.GUARANTEE)


def answer(options: argparse.Namespace) -> str:
    """Returns the explanation."""
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        return explain(
            ledger,
            delta=arguments.delta_for(options.delta, ledger),
            neighbours=options.neighbours,
            units=options.units,
        ).as_text()
