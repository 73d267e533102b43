"""`keras-dp runs`: each run with its epsilon, and the running total."""

import argparse
import json

from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.run_costs import run_costs
from keras_dp.reporting.tables import run_table

HELP = "list the runs of a ledger with their epsilon and the running total"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add(
        parser, "file", "planned delta", "neighbours", "units", "json"
    )


def answer(options: argparse.Namespace) -> str:
    """Returns the table."""
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        delta = arguments.delta_for(options.delta, ledger)
        costs = run_costs(
            ledger,
            delta=delta,
            neighbours=options.neighbours,
            units=options.units,
        )
    if options.json:
        return json.dumps([each.as_dict() for each in costs], indent=2)
    lines = [
        f"Epsilon at delta = {delta!r} of each run alone, and of all so far;",
        "of a run that kept to its plan, the epsilon of the plan.",
        *run_table(costs).lines(),
    ]
    return "\n".join(lines)
