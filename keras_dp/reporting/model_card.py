"""Model cards: Markdown with front matter, filled from a ledger."""

import json
import math
import re
from collections.abc import Iterable, Iterator

import numpy as np

from keras_dp._version import __version__
from keras_dp.accountants.claim import rounded_up
from keras_dp.reporting.report import BEFORE, Details, Report
from keras_dp.reporting.tables import Table
from keras_dp.reporting.wording import counted, libraries_of, on_one_line

# A line of a card rests on one of these.
_RECORD = "record"
_COMPUTED = "computed"
_DECLARED = "declared"
_YOURS = "yours"
_MEANINGS = {
    _RECORD: "read from the rows that the training wrote",
    _COMPUTED: f"computed from these rows by keras_dp {__version__}",
    _DECLARED: "written by people, and checked by nobody",
    _YOURS: "not in the ledger: a person must write it",
}
# The ledger cannot answer these; `{unit}` is the privacy unit.
_ASKED = {
    "License": ("Under which license may the model be used?",),
    "Intended use": (
        "What is the model for, and what must it not be used for? Is it meant "
        "to give out data of those in its training data?",
    ),
    "Data": (
        "From which sources are the data, why these, and are they fit for the "
        "purpose?",
        "How is it known which records belong to one {unit}? Can a person be "
        "in the data under several names, or in records of others?",
    ),
    "Utility": (
        "How good is the result for its purpose: which measure, on which data, "
        "with which error?",
        "How good is it for each group that matters, and how many of each "
        "group are in the data? Noise and clipping cost small groups more.",
    ),
    "Access": (
        "Who can read the records, the ledger and unpublished weights, how is "
        "that enforced, and how long are records kept?",
        "What else was or will be released from these data: statistics, "
        "models, samples, validation results?",
    ),
}
# Characters that Markdown or HTML would read as more than themselves.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&$])")


def model_card(report: Report) -> str:
    """Returns a model card: Markdown with the front matter of Hugging Face.

    Each line says what it rests on: rows of the ledger, a computation from
    them, or a declaration. Questions stand where the ledger has no answer, for
    people to answer in the card. The names of people and machines stay in the
    ledger.

    Args:
        report: A report that `make_report(..., details=True)` returned.

    Raises:
        ValueError: The report was made without details.

    >>> from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
    >>> from keras_dp.reporting.report import make_report
    >>> ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    >>> ledger.record(FullDataset(), [GaussianSum("counts", 1.0, 4.0)])
    >>> card = model_card(make_report(ledger, delta=1e-5, details=True))
    >>> card.splitlines()[4:6]
    ['differential_privacy:', '  epsilon: 0.9264']
    """
    details = report.required_details()
    return "\n".join(
        [
            *_front_matter(report, details),
            *_privacy(report, details),
            *_training(report),
            *_questions(report),
        ]
    )


def _front_matter(report: Report, details: Details) -> Iterator[str]:
    """Yields YAML; text in it is JSON, which YAML reads."""
    claim = report.claim
    epsilon = ".inf"
    if math.isfinite(claim.epsilon):
        epsilon = rounded_up(claim.epsilon)
    facts = {
        "epsilon": epsilon,
        # With a point, which YAML asks of a number with an exponent.
        "delta": np.format_float_scientific(report.delta, trim="0"),
        "neighbours": json.dumps(claim.neighbours),
        "unit": json.dumps(on_one_line(report.unit)),
        "records_per_unit": str(report.rows_per_unit),
        "units_together": str(report.units),
        "ledger_head": json.dumps(details.head),
    }
    yield "---"
    if "keras" in report.versions and not _libraries(report):
        yield "library_name: keras"
    yield from (
        "tags:",
        "- differential-privacy",
        "- keras_dp",
        "differential_privacy:",
    )
    yield from (f"  {name}: {value}" for name, value in facts.items())
    yield "---"


def _privacy(report: Report, details: Details) -> Iterator[str]:
    yield from ("", "# Model card", "")
    yield from (f"> {_text(report.plain_words)}", "")
    yield "Each line says what it rests on:"
    yield ""
    yield from (f"- *{name}*: {meaning}" for name, meaning in _MEANINGS.items())
    yield from ("", "## Privacy", "")
    claim, *theorem = report.sentences
    runs = sum(1 for each in report.runs if each.run.number)
    facts = [
        ("Guarantee", claim, _COMPUTED),
        *(("Why it holds", each, _COMPUTED) for each in theorem),
        ("Data set", report.dataset, _DECLARED),
        ("Privacy unit", report.unit, _DECLARED),
        ("Records of one unit", f"{report.rows_per_unit:,} at most", _DECLARED),
        (
            "Covers",
            f"{counted(report.total_rounds, 'round')} in "
            f"{counted(runs, 'run')}, planned or run",
            _RECORD,
        ),
        (
            "Head of the ledger",
            f"{details.head} over {counted(details.rows, 'row')}",
            _COMPUTED,
        ),
    ]
    yield from _table(Table(("what", "answer", "from"), tuple(facts)))
    if report.cautions:
        yield from ("", f"### {BEFORE}", "", f"From: *{_COMPUTED}*.", "")
        yield from _items(report.cautions)
    for title, sentences in details.explanation.paragraphs:
        yield from ("", f"### {_text(title)}", "", f"From: *{_COMPUTED}*.", "")
        yield from _items(sentences)


def _training(report: Report) -> Iterator[str]:
    yield from ("", "## Training", "")
    for title, table in report.tables().items():
        if table.titles[-1] == "by":  # Names of people and machines.
            table = table._replace(
                titles=table.titles[:-1],
                rows=tuple(row[:-1] for row in table.rows),
            )
        source = f"*{_RECORD}*"
        if title == "Rounds" and _libraries(report):
            library = _text(_libraries(report))
            source += f", and *{_DECLARED}* of what ran in {library}"
        if "epsilon" in title:
            source += f", epsilon *{_COMPUTED}*"
        yield from (f"### {title}", "", f"From: {source}.", "")
        yield from (*_table(table), "")
    versions = tuple(
        (name, ", ".join(each)) for name, each in report.versions.items()
    )
    if versions:
        yield from ("### Versions", "", f"From: *{_RECORD}*.", "")
        yield from _table(Table(("library", "in the runs"), versions))


def _questions(report: Report) -> Iterator[str]:
    yield from ("", "## Yours to write", "")
    for title, questions in _ASKED.items():
        yield from (f"### {title}", "")
        for each in questions:
            text = _text(each.format(unit=report.unit))
            yield from (f"{text} From: *{_YOURS}*.", "")


def _libraries(report: Report) -> str:
    """Returns the other libraries that ran rounds; empty for none."""
    return libraries_of(each.run for each in report.runs)


def _items(texts: Iterable[str]) -> Iterator[str]:
    yield from (f"- {_text(each)}" for each in texts)


def _table(table: Table) -> Iterator[str]:
    """Yields a table of Markdown, with its notes below."""
    columns = range(len(table.titles))
    yield f"| {' | '.join(map(_text, table.titles))} |"
    rules = ("---:" if each in table.numbers else "---" for each in columns)
    yield f"| {' | '.join(rules)} |"
    for row in table.rows:
        cells = ("<br>".join(map(_text, each.split("\n"))) for each in row)
        yield f"| {' | '.join(cells)} |"
    for note in table.notes:
        yield from ("", _text(note))


def _text(text: str) -> str:
    """Returns a text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", on_one_line(text))
