"""`keras-dp runs`: each run with its epsilon, and the running total."""

import argparse
import json
from collections.abc import Iterable

from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.contradictions import audited, failing_after
from keras_dp.reporting.run_costs import run_costs
from keras_dp.reporting.tables import run_lines
from keras_dp.reporting.wording import wrapped

HELP = "list the runs of a ledger with their epsilon and the running total"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add_file(parser)
    arguments.add_delta_or_planned(parser)
    arguments.add_neighbours(parser)
    arguments.add_group_size(parser)
    arguments.add_json(parser)


def answer(options: argparse.Namespace) -> str | Iterable[str]:
    """Returns the table, and what audits found.

    Raises:
        ContradictedLedgerError: After the answer: an audit found more than is
            certified.
    """
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        delta = arguments.delta_for(options.delta, ledger)
        costs = run_costs(
            ledger.runs,
            delta=delta,
            neighbours=options.neighbours,
            group_size=ledger.header.rows_per_unit * options.group_size,
        )
        audits, warnings = audited(ledger)
    if options.json:
        text = json.dumps([each.as_dict() for each in costs], indent=2)
        return failing_after(text, warnings)
    lines = [
        f"Epsilon at delta = {delta!r} of each run alone, and of all so far;",
        "of a run that kept to its plan, the epsilon of the plan.",
        *run_lines(costs),
        *wrapped(audits),
    ]
    return failing_after("\n".join(lines), warnings)
