"""`keras-dp plan`: the noise that a privacy target needs."""

import argparse

from keras_dp.planning import plan
from keras_dp.reporting.commands import arguments

HELP = "print the noise that a privacy target needs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    parser.add_argument(
        "--records", type=int, required=True, help="records in the data set"
    )
    arguments.add(parser, "epsilon", "delta")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument(
        "--batch-sizes",
        type=int,
        nargs="+",
        required=True,
        help="expected sizes of a sample",
    )
    parser.add_argument(
        "--rows-per-unit",
        type=arguments.count,
        default=1,
        help="records that one unit has at most, for all of which epsilon is "
        "(default: 1)",
    )
    arguments.add(parser, "neighbours")


def answer(options: argparse.Namespace) -> str:
    """Returns the plan as a table.

    Raises:
        CalibrationError: No noise meets the target.
    """
    found = plan(
        options.records,
        target_epsilon=options.epsilon,
        delta=options.delta,
        epochs=options.epochs,
        batch_sizes=options.batch_sizes,
        neighbours=options.neighbours,
        units=options.rows_per_unit,
    )
    return found.as_text()
