"""A standard as a table: its requirements, and what answers each of them."""

from typing import NamedTuple

from keras_dp.reporting.sources import MEANINGS
from keras_dp.reporting.standards.declarations import QUESTIONS

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
        answers: The names of what answers: a function of `facts`, a key of
            `QUESTIONS`, or in capitals a sentence of `limits`.
    """

    section: str
    title: str
    asks: str
    answers: tuple[str, ...]

    @property
    def declared(self) -> tuple[str, ...]:
        """The keys of the declarations that it needs."""
        return tuple(each for each in self.answers if each in QUESTIONS)


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


def standard(name: str, table: str) -> Standard:
    """Returns the standard of a table, whose parts blank lines divide.

    The first part is the title, the second the scope. Each other one begins
    with `section: title`, and ends with lines `-> answers`.
    """
    title, scope, *parts = table.strip().split("\n\n")
    return Standard(
        name, _flat(title), _flat(scope), tuple(map(_requirement, parts))
    )


def _requirement(part: str) -> Requirement:
    heading, text = part.split("\n", 1)
    section, title = heading.split(": ", 1)
    asks, *answers = text.split("\n-> ")
    names = " ".join(answers).replace(",", "").split()
    return Requirement(section, title, _flat(asks), tuple(names))


def _flat(text: str) -> str:
    return " ".join(text.split())
