"""A standard as a table: its requirements, and what answers each of them."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from keras_dp.reporting.report import Report
from keras_dp.reporting.sources import COMPUTED, DECLARED, MEANINGS, RECORD

MISSING = "missing"
NOT_COVERED = "not covered"
KINDS = {
    **MEANINGS,
    MISSING: "asked for, and neither in the ledger nor declared",
    NOT_COVERED: "outside of what the ledger or this library can say",
}


class Answer(NamedTuple):
    """A sentence that answers a part of a requirement.

    Attributes:
        kind: One of `KINDS`: the source of the answer, or that there is none.
        text: The answer; or, if it is missing, what is asked for.
        key: The key of the declaration, or of what is missing; empty for
            others.
    """

    kind: str
    text: str
    key: str = ""


Answers: TypeAlias = tuple[Answer, ...]


class Requirement(NamedTuple):
    """A requirement of a standard, in our words.

    Attributes:
        section: The number or the subject of the section that has it.
        title: A topic.
        asks: A sentence on what the standard asks for.
        facts: Functions that answer from a report with its details.
        declared: The keys of the declarations that it needs.
    """

    section: str
    title: str
    asks: str
    facts: tuple[Callable[[Report], Answers], ...] = ()
    declared: tuple[str, ...] = ()


class Standard(NamedTuple):
    """A document with requirements.

    Attributes:
        name: The short name by which a user chooses it.
        title: Its title, publisher and edition.
        scope: A sentence on the part of it that the page covers.
        requirements: In the order of the document.
    """

    name: str
    title: str
    scope: str
    requirements: tuple[Requirement, ...]


def record(text: str) -> Answer:
    """Returns an answer from the rows of the ledger."""
    return Answer(RECORD, text)


def computed(text: str) -> Answer:
    """Returns an answer that was computed from the rows."""
    return Answer(COMPUTED, text)


def declared(text: str, key: str = "") -> Answer:
    """Returns an answer that rests on a person's word."""
    return Answer(DECLARED, text, key)


def missing(text: str, key: str) -> Answer:
    """Returns a gap: what is asked for, and by which key it is known."""
    return Answer(MISSING, text, key)


def not_covered(text: str) -> Answer:
    """Returns a limit of what can be said."""
    return Answer(NOT_COVERED, text)
