"""A standard's requirements with the answers of a ledger and of people."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from keras_dp._version import __version__
from keras_dp.reporting import limits
from keras_dp.reporting.html_page import (
    escaped,
    list_of,
    paragraphs_of,
    table_of,
    whole_page,
)
from keras_dp.reporting.report import Report
from keras_dp.reporting.run_costs import json_number
from keras_dp.reporting.sources import DECLARED
from keras_dp.reporting.standards import facts
from keras_dp.reporting.standards.declarations import (
    QUESTIONS,
    checked,
    form,
    question,
)
from keras_dp.reporting.standards.edpb_28_2024 import EDPB_28_2024
from keras_dp.reporting.standards.iso_27559 import ISO_27559
from keras_dp.reporting.standards.nist_800_226 import NIST_800_226
from keras_dp.reporting.standards.requirements import (
    KINDS,
    MISSING,
    NOT_COVERED,
    Answer,
    Requirement,
    Standard,
)
from keras_dp.reporting.tables import Table
from keras_dp.reporting.wording import counted, on_one_line, wrapped

STANDARDS = {
    each.name: each for each in (NIST_800_226, EDPB_28_2024, ISO_27559)
}
# Every page begins with it, whatever the standard.
_SUBJECT = Requirement(
    "before the standard",
    "What is assessed, and who says so",
    "Name the data set, what is released, and who makes the declarations.",
    ("subject", "released", "declared_by", "FILES"),
)
NO_CERTIFICATION = (
    "This page says what the ledger and the people who are named say. It is "
    "no certification and no legal advice. Requirements are in our words: "
    "read the document itself."
)
_SOURCES = tuple(f"{kind}: {meaning}" for kind, meaning in KINDS.items())
_LIMITS_TITLE = "What this page does not cover"


class Answered(NamedTuple):
    """A requirement with its answers.

    Attributes:
        requirement: From the table of the standard.
        answers: At least one; what is missing comes last.
    """

    requirement: Requirement
    answers: tuple[Answer, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Assessment:
    """A ledger and its declarations beside the requirements of a standard.

    Attributes:
        standard: The document.
        report: The report of the ledger.
        answered: All requirements, in the order of the document.
    """

    standard: Standard
    report: Report
    answered: tuple[Answered, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """The keys of all answers that are missing, each once."""
        return tuple(
            dict.fromkeys(
                answer.key
                for _, answers in self.answered
                for answer in answers
                if answer.kind == MISSING
            )
        )

    @property
    def summary(self) -> tuple[str, str]:
        """The claim, and how much is missing, as sentences."""
        gaps = "Nothing that the page asks for is missing."
        if self.missing:
            gaps = (
                f"MISSING: {counted(len(self.missing), 'answer')}: "
                f"{', '.join(self.missing)}."
            )
        return f"{self.report.sentences[0]}.", gaps

    def form(self, held: Mapping[str, str] | None = None) -> str:
        """Returns a TOML file with all declarations that are asked for.

        Args:
            held: Texts that are known already.
        """
        keys = [key for each, _ in self.answered for key in each.declared]
        return form(keys, unit=on_one_line(self.report.unit), held=held)

    def as_text(self) -> str:
        """Returns the page as lines that fit a terminal."""
        lines = [
            line
            for each in self.report.contradictions
            for line in wrapped(each)
        ]
        lines += wrapped(self.standard.title)
        lines += wrapped(self.standard.scope, "  ", "  ")
        for each in (*self.summary, NO_CERTIFICATION):
            lines += ["", *wrapped(each)]
        lines += ["", "Each answer names its source:", *_items(_SOURCES)]
        for requirement, rows in self._shown():
            lines += ["", *wrapped(_heading(requirement))]
            lines += wrapped(requirement.asks, "  ", "  ")
            lines += _items(": ".join(row) for row in rows)
        lines += ["", _LIMITS_TITLE, *_items(limits.LIMITS)]
        return "\n".join(lines)

    def as_page(self) -> str:
        """Returns an HTML page that needs no other file, to print and sign."""
        return whole_page(
            f"{self.report.dataset}: answers to {self.standard.name}",
            "".join(self._sections()),
        )

    def as_json(self) -> str:
        """Returns a JSON object; an infinite epsilon is the text `inf`."""
        report = self.report
        return json.dumps(
            {
                "standard": self.standard.name,
                "title": self.standard.title,
                "scope": self.standard.scope,
                "version": __version__,
                "dataset": report.dataset,
                "unit": report.unit,
                "head": report.required_details().head,
                "claim": {
                    **dataclasses.asdict(report.claim),
                    "epsilon": json_number(report.claim.epsilon),
                },
                "contradictions": list(report.contradictions),
                "kinds": KINDS,
                "requirements": [*map(_as_dict, self.answered)],
                "missing": list(self.missing),
                "not_covered": list(limits.LIMITS),
            },
            indent=2,
        )

    def _shown(self) -> Iterator[tuple[Requirement, list[tuple[str, str]]]]:
        """Yields requirements with rows of sources and answers.

        An answer that was there before names the place where it was.
        """
        first: dict[Answer, str] = {}
        for requirement, answers in self.answered:
            rows: dict[tuple[str, str], None] = {}
            for each in answers:
                where = first.setdefault(each, requirement.title)
                text = f'see "{where}".'
                if where == requirement.title:
                    text = on_one_line(" ".join(each.text.split()))
                rows[_kind(each), text] = None
            yield requirement, [*rows]

    def _sections(self) -> Iterator[str]:
        report = self.report
        if report.contradictions:
            warnings = paragraphs_of(report.contradictions)
            yield f'<div class="cautions">{warnings}</div>'
        yield paragraphs_of((self.standard.title, self.standard.scope))
        claim, gaps = self.summary
        yield f'<div class="claim">{paragraphs_of((claim,))}</div>'
        kind = "cautions" if self.missing else "soft"
        yield f'<div class="{kind}">{paragraphs_of((gaps,))}</div>'
        yield paragraphs_of((NO_CERTIFICATION,))
        yield f"<h3>Sources of answers</h3>{list_of(_SOURCES)}"
        for requirement, rows in self._shown():
            yield (
                f"<h2>{escaped(_heading(requirement))}</h2>"
                f"{paragraphs_of((requirement.asks,))}"
                f"{table_of(Table(('source', 'answer'), tuple(rows)))}"
            )
        yield f"<h2>{_LIMITS_TITLE}</h2>{list_of(limits.LIMITS)}"
        head = report.required_details().head
        yield paragraphs_of(
            (f"Head of the ledger: {head}, keras_dp {__version__}.",)
        )
        yield '<p style="margin-top:4em">Date, name, signature:</p>'


def assess(
    report: Report,
    standard: str,
    declarations: Mapping[str, str] | None = None,
) -> Assessment:
    """Returns the requirements of a standard with a ledger's answers.

    Args:
        report: A report that `make_report(..., details=True)` returned.
        standard: A name in `STANDARDS`: "nist-800-226", "edpb-28-2024" or
            "iso-27559".
        declarations: Texts of people, by the keys that the standard asks for;
            `read_declarations` reads them from a file.

    Raises:
        ValueError: The report was made without details, the standard or a
            declaration is unknown, or a declaration is no text.

    >>> from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
    >>> from keras_dp.reporting.report import make_report
    >>> ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    >>> ledger.record(FullDataset(), [GaussianSum("counts", 1.0, 4.0)])
    >>> report = make_report(ledger, delta=1e-5, details=True)
    >>> found = assess(report, "iso-27559", {"roles": "The board."})
    >>> "audits" in found.missing, "roles" in found.missing
    (True, False)
    """
    if standard not in STANDARDS:
        raise ValueError(
            f"`standard` must be one of {', '.join(STANDARDS)}. Received: "
            f"standard={standard!r}."
        )
    report.required_details()
    texts = checked(declarations or {})
    return Assessment(
        STANDARDS[standard],
        report,
        tuple(
            Answered(each, _answers(each, report, texts))
            for each in (_SUBJECT, *STANDARDS[standard].requirements)
        ),
    )


def _answers(
    requirement: Requirement, report: Report, texts: Mapping[str, str]
) -> tuple[Answer, ...]:
    found: list[Answer] = []
    for name in requirement.answers:
        if name.isupper():
            found.append(Answer(NOT_COVERED, getattr(limits, name)))
        elif name in texts:
            found.append(Answer(DECLARED, texts[name], name))
        elif name in QUESTIONS:
            asked = question(name, on_one_line(report.unit))
            found.append(Answer(MISSING, asked, name))
        else:
            found += getattr(facts, name)(report)
    # People look at the end for what is missing.
    return tuple(sorted(found, key=lambda each: each.kind == MISSING))


def _heading(requirement: Requirement) -> str:
    return f"{requirement.title} ({requirement.section})"


def _items(texts: Iterable[str]) -> list[str]:
    return [line for each in texts for line in wrapped(each, "  - ", "      ")]


def _kind(answer: Answer) -> str:
    """Returns the source of an answer, with the key by which it is declared."""
    kind = answer.kind.upper() if answer.kind == MISSING else answer.kind
    return f"{kind} [{answer.key}]" if answer.key else kind


def _as_dict(answered: Answered) -> dict[str, Any]:
    requirement, answers = answered
    return {
        "section": requirement.section,
        "title": requirement.title,
        "asks": requirement.asks,
        "answers": [each._asdict() for each in answers],
    }
