"""Documents: what commands answer, as titled texts, tables and pictures.

Each command makes a document. `render` prints any document in any form.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias


class Text(NamedTuple):
    """Sentences, each of which can be read alone.

    Attributes:
        title: A question or a topic. Without one, the sentences are paragraphs;
            under one they are a list.
        sentences: The sentences.
        stress: Whether they are the claim to publish, or a warning.
    """

    title: str
    sentences: tuple[str, ...]
    stress: Literal["", "claim", "warning"] = ""


class Code(NamedTuple):
    """Lines that are shown as they are.

    Attributes:
        lines: The lines.
    """

    lines: tuple[str, ...]


class Table(NamedTuple):
    """Rows under the names of their columns, with sentences below.

    Attributes:
        title: A phrase that says what the rows are.
        columns: The name of each column; empty if the rows need none.
        rows: The cells. A tuple is a cell of several lines.
        short: The number of columns that stand beside each other in a
            terminal. The cells of the others follow, each on its own lines.
        numbers: The indices of columns that are aligned to the right.
        personal: The indices of columns that name people and machines. They
            are left out of Markdown, which is for publishing.
        notes: Sentences for below the table.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | tuple[str, ...], ...], ...]
    short: int = 1
    numbers: tuple[int, ...] = ()
    personal: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


class Picture(NamedTuple):
    """Pictures beside each other, which texts of the document put in words.

    Attributes:
        title: A phrase that says what they show.
        svgs: Elements `<svg>`, each complete by itself.
    """

    title: str
    svgs: tuple[str, ...]


Part: TypeAlias = Text | Code | Table | Picture


class Document(NamedTuple):
    """The answer to a question about a ledger.

    Attributes:
        title: The title of a page.
        parts: The parts that people read, in order.
        facts: Exact numbers for programs, as values that JSON can hold.
    """

    title: str
    parts: tuple[Part, ...]
    facts: Mapping[str, Any]
