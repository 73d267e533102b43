"""Prints any document: as text, JSON, HTML or Markdown.

Guarantee: no name in a ledger can forge a line of a document, move the cursor
of a terminal, or become an element of a page. A character that cannot be
printed is escaped, here and nowhere else.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias, get_args

from keras_dp import _check
from keras_dp.reporting.document import Code, Document, Picture, Table, Text
from keras_dp.reporting.page import page_of
from keras_dp.reporting.wording import on_one_line, wrapped

Form: TypeAlias = Literal["text", "json", "html", "markdown"]
FORMS: tuple[Form, ...] = get_args(Form)

# Characters that Markdown or HTML would read as more than themselves.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&$])")


def render(document: Document, form: Form = "text") -> str:
    r"""Returns a document in a form.

    Args:
        document: `document()` of a report, an explanation or a certificate.
        form: "text" for a terminal; "json" for programs, with the exact numbers
            and no sentences but those that are facts; "html" for a page with
            pictures that needs no other file; "markdown" to publish, without
            the names of people and machines.

    Raises:
        ValueError: `form` is another one.

    >>> document = Document("A title", (Text("", ("One sentence.",)),), {})
    >>> render(document), render(document, "markdown")
    ('One sentence.', '# A title\n\nOne sentence.')
    """
    _check.one_of(FORMS, form=form)
    if form == "json":
        return _json(document)
    if form == "html":
        return page_of(document)
    if form == "markdown":
        return "\n\n".join(_markdown(document))
    parts = ("\n".join(_lines(part)) for part in document.parts)
    return "\n\n".join(part for part in parts if part)


def _lines(part: Text | Code | Table | Picture) -> Iterator[str]:
    """Yields a part as lines that fit a terminal."""
    if isinstance(part, Code):
        yield from part.lines
    if isinstance(part, Code | Picture):
        return
    if part.title:
        yield f"{on_one_line(part.title)}:"
    if isinstance(part, Table):
        yield from _rows(part)
        return
    for sentence in part.sentences:
        first = "  - " if part.title else ""
        yield from wrapped(on_one_line(sentence), first)


def _rows(table: Table) -> Iterator[str]:
    head = (table.columns,) if table.columns and table.short > 1 else ()
    rows = [[*map(_parts, row[: table.short])] for row in (*head, *table.rows)]
    widths = [
        max(len(line) for cell in column for line in cell)
        for column in zip(*rows, strict=True)
    ]
    for index, row in enumerate(rows):
        if table.short > 1:
            cells = (
                cell.rjust(width)
                if column in table.numbers
                else cell.ljust(width)
                for column, ((cell,), width) in enumerate(
                    zip(row, widths, strict=True)
                )
            )
            yield f"  {'  '.join(cells).rstrip()}"
        else:
            yield from wrapped(row[0][0], "  ", "      ")
        if index >= len(head):
            for cell in table.rows[index - len(head)][table.short :]:
                for line in _parts(cell):
                    yield from wrapped(line, " " * 6, " " * 10)
    for note in table.notes:
        yield from wrapped(on_one_line(note), "  ")


def _parts(cell: str | tuple[str, ...]) -> tuple[str, ...]:
    """Returns the lines of a cell."""
    cells = (cell,) if isinstance(cell, str) else cell
    return tuple(map(on_one_line, cells))


def _json(document: Document) -> str:
    """Returns the facts as one object, with an entry of a list on each line."""
    entries = []
    for name, value in document.facts.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list) and value:
            items = (json.dumps(each, allow_nan=False) for each in value)
            text = "[\n    " + ",\n    ".join(items) + "\n  ]"
        entries.append(f"  {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}"


def _markdown(document: Document) -> Iterator[str]:
    """Yields blocks; tables are one level above titled texts, as on pages."""
    yield f"# {_marked(document.title)}"
    for part in document.parts:
        if isinstance(part, Code):
            yield "\n".join(["```", *part.lines, "```"])
        elif isinstance(part, Table):
            yield f"## {_marked(part.title)}"
            yield "\n".join(_table(part))
            yield from map(_marked, part.notes)
        elif isinstance(part, Text) and part.title:
            yield f"### {_marked(part.title)}"
            yield "\n".join(f"- {_marked(each)}" for each in part.sentences)
        elif isinstance(part, Text):
            quote = "> " if part.stress else ""
            blocks = (f"{quote}{_marked(each)}" for each in part.sentences)
            yield f"\n{quote.strip()}\n".join(blocks)


def _table(table: Table) -> Iterator[str]:
    width = len(table.columns) or len(table.rows[0])
    shown = [index for index in range(width) if index not in table.personal]

    def line(cells: Sequence[str | tuple[str, ...]]) -> str:
        texts = ("<br>".join(map(_marked, _parts(cells[i]))) for i in shown)
        return f"| {' | '.join(texts)} |"

    yield line(table.columns or ("",) * width)
    rules = ("---:" if index in table.numbers else "---" for index in shown)
    yield f"| {' | '.join(rules)} |"
    yield from map(line, table.rows)


def _marked(text: str) -> str:
    """Returns a text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", on_one_line(text))
