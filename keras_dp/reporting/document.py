"""Documents: titled texts, tables and pictures, and how any of them is printed.

Each command makes a document, and `render` prints any document as text, JSON,
HTML or Markdown.

Guarantee: no name in a ledger can forge a line of a document, move the cursor
of a terminal, or become an element of a page. A character that cannot be
printed is escaped, here and nowhere else.

A page of HTML holds no script, loads nothing, and can be read in light and
dark.
"""

import dataclasses
import html
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from keras_dp import _check
from keras_dp.accountants.claim import Claim
from keras_dp.reporting.wording import on_one_line

_NO_BREAK = "\N{NO-BREAK SPACE}%"

_STYLE = """
:root{color-scheme:light dark;--paper:#fff;--card:#f5f7f9;--ink:#1c2430;
--soft:#566170;--line:#dfe3e8;--a:#1d5fd1;--warn:#b3400a}
@media (prefers-color-scheme:dark){:root{--paper:#14181e;--card:#1c222a;
--ink:#e8ebef;--soft:#a9b3bf;--line:#333c47;--a:#79aefc;--warn:#f59a63}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
main{max-width:1080px;margin:0 auto;padding:16px 20px 48px}
h1{font-size:1.5rem;margin:.6em 0 .2em}h2{font-size:1.2rem;margin:2em 0 .5em;
border-bottom:1px solid var(--line);padding-bottom:.2em}
h3{font-size:1rem;margin:1.2em 0 .3em}p{margin:.5em 0}ul{padding-left:1.3em}
.soft{color:var(--soft)}.claim{background:var(--card);padding:12px 16px;
border-left:4px solid var(--a);margin:1em 0}.claim p:first-child{
font-size:1.15rem;font-weight:600}
.warning{border-left:4px solid var(--warn);background:var(--card);
padding:4px 16px;margin:1em 0}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th{text-align:left;color:var(--soft);font-weight:600}
td,th{padding:6px 10px 6px 0;border-bottom:1px solid var(--line);
vertical-align:top}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.pair{display:flex;flex-wrap:wrap;gap:16px}.pair>figure{flex:1 1 420px;margin:0}
pre{overflow-x:auto}
@media (max-width:640px){thead{display:none}tr{display:block;
border-bottom:1px solid var(--line);padding:8px 0}td{display:flex;
justify-content:space-between;gap:16px;border:0;padding:2px 0;text-align:right}
td::before{content:attr(data-title);color:var(--soft);text-align:left;
flex:none}td>span{min-width:0}
td.wide{display:block;text-align:left}td.wide::before{content:none}
.pair>figure{flex-basis:280px}}
@media print{h2{break-after:avoid}figure,tr{break-inside:avoid}}
"""
Form: TypeAlias = Literal["text", "json", "html", "markdown"]
FORMS: tuple[Form, ...] = get_args(Form)

# The width of a terminal, in characters.
_WIDTH = 79
# Characters that Markdown or HTML would read as more than themselves.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&$])")


class Text(NamedTuple):
    """Sentences, each of which can be read alone.

    Under a title, which is a question or a topic, they are a list; without one
    they are paragraphs. The stress marks the claim to publish, or a warning.
    """

    title: str
    sentences: tuple[str, ...]
    stress: Literal["", "claim", "warning"] = ""


class Code(NamedTuple):
    """Lines that are shown as they are."""

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

    Each is an element `<svg>`, complete by itself. The title says what they
    show.
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

    def __str__(self) -> str:
        """Returns the document as text."""
        return render(self)


def json_number(value: float) -> float | str:
    """Returns a finite number as it is, and infinity as the text `inf`."""
    return value if math.isfinite(value) else "inf"


def json_claim(found: Claim) -> dict[str, Any]:
    """Returns a claim as values that JSON can hold."""
    return {
        **dataclasses.asdict(found),
        "epsilon": json_number(found.epsilon),
    }


def page_of(document: Document) -> str:
    """Returns the page, in ASCII: no terminal's encoding can change it."""
    title = _escaped(document.title)
    body = "".join(map(_part_element, document.parts))
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{title}</h1>{body}</main></body></html>"
    )
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _part_element(part: Text | Code | Table | Picture) -> str:
    """Returns a part; tables are one level above titled texts."""
    if isinstance(part, Code):
        return f"<pre>{html.escape(chr(10).join(part.lines))}</pre>"
    if isinstance(part, Table):
        return f"<h2>{_escaped(part.title)}</h2>{_table_element(part)}"
    if isinstance(part, Picture):
        figures = "".join(f"<figure>{svg}</figure>" for svg in part.svgs)
        title = _escaped(part.title)
        return f'<h2>{title}</h2><div class="pair">{figures}</div>'
    # No line begins with a percent sign.
    texts = [_escaped(each).replace(" %", _NO_BREAK) for each in part.sentences]
    if part.title:
        items = "".join(f"<li>{each}</li>" for each in texts)
        found = f"<h3>{_escaped(part.title)}</h3><ul>{items}</ul>"
    else:
        found = "".join(f"<p>{each}</p>" for each in texts)
    return f'<div class="{part.stress}">{found}</div>' if part.stress else found


def _table_element(table: Table) -> str:
    """Returns a table whose rows are blocks on a narrow page."""
    columns = table.columns or ("",) * len(table.rows[0])

    def lines(cell: str | tuple[str, ...]) -> str:
        cells = (cell,) if isinstance(cell, str) else cell
        return "<br>".join(map(_escaped, cells))

    def kind(index: int) -> str:
        if index in table.numbers:
            return ' class="number"'
        return ' class="wide"' if index >= table.short else ""

    head = "".join(
        f"<th{kind(index)}>{_escaped(name)}</th>"
        for index, name in enumerate(columns)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{kind(index)} data-title="{_escaped(columns[index])}">'
            f"<span>{lines(cell)}</span></td>"
            for index, cell in enumerate(row)
        )
        + "</tr>"
        for row in table.rows
    )
    notes = "".join(
        f'<p class="soft">{_escaped(each)}</p>' for each in table.notes
    )
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"{notes}"
    )


def _escaped(text: str) -> str:
    """Returns a text on one line, as HTML shows it."""
    return html.escape(on_one_line(text))


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
        yield from _wrapped(on_one_line(sentence), first)


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
            yield from _wrapped(row[0][0], "  ", "      ")
        if index >= len(head):
            for cell in table.rows[index - len(head)][table.short :]:
                for line in _parts(cell):
                    yield from _wrapped(line, " " * 6, " " * 10)
    for note in table.notes:
        yield from _wrapped(on_one_line(note), "  ")


def _parts(cell: str | tuple[str, ...]) -> tuple[str, ...]:
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


def _wrapped(text: str, first: str = "", later: str = "    ") -> list[str]:
    """Returns a sentence as lines that fit a terminal."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
    )
