"""A standard as a table: its requirements, and what answers each of them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from keras_dp.reporting.report import Report
from keras_dp.reporting.sources import MEANINGS

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


class Requirement(NamedTuple):
    """A requirement of a standard, in our words.

    Attributes:
        section: The number or the subject of the section that has it.
        title: A topic.
        asks: A sentence on what the standard asks for.
        facts: Functions that answer from a report with its details.
        declared: The keys of the declarations that it needs.
        limits: Sentences on what no answer covers.
    """

    section: str
    title: str
    asks: str
    facts: tuple[Callable[[Report], Iterator[Answer]], ...] = ()
    declared: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


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
