"""`keras-dp explain`: what epsilon means for one person."""

import argparse

from keras_dp.auditing.verdicts import judgements
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.contradictions import (
    Answer,
    AuditSummary,
    warnings_of,
)
from keras_dp.reporting.explanation import explain
from keras_dp.reporting.wording import wrapped

HELP = "say in sentences what epsilon means for one person"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add(parser, *arguments.GUARANTEE)


def answer(options: argparse.Namespace) -> Answer:
    """Returns the explanation, and what audits found."""
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        text = explain(
            ledger,
            delta=arguments.delta_for(options.delta, ledger),
            neighbours=options.neighbours,
            units=options.units,
        ).as_text()
        audits = judgements(ledger)
    lines = [text, "", *wrapped(AuditSummary.of(audits).sentence)]
    return Answer("\n".join(lines), warnings_of(audits))
