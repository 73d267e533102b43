"""`keras-dp runs`: each run with its epsilon, and the running total."""

import argparse
import json

from keras_dp.auditing.verdicts import judgements
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.contradictions import (
    Answer,
    AuditSummary,
    warnings_of,
)
from keras_dp.reporting.run_costs import run_costs
from keras_dp.reporting.tables import run_table
from keras_dp.reporting.wording import wrapped

HELP = "list the runs of a ledger with their epsilon and the running total"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add(
        parser, "file", "planned delta", "neighbours", "units", "json"
    )


def answer(options: argparse.Namespace) -> Answer:
    """Returns the table, and what audits found."""
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        delta = arguments.delta_for(options.delta, ledger)
        costs = run_costs(
            ledger,
            delta=delta,
            neighbours=options.neighbours,
            units=options.units,
        )
        audits = judgements(ledger)
    if options.json:
        text = json.dumps([each.as_dict() for each in costs], indent=2)
        return Answer(text, warnings_of(audits))
    lines = [
        f"Epsilon at delta = {delta!r} of each run alone, and of all so far;",
        "of a run that kept to its plan, the epsilon of the plan.",
        *run_table(costs).lines(),
        *wrapped(AuditSummary.of(audits).sentence),
    ]
    return Answer("\n".join(lines), warnings_of(audits))
