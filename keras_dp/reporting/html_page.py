"""Pages of HTML that need no other file: their frame, lists and tables."""

import html
from collections.abc import Iterable

from keras_dp.reporting.tables import Table
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
.cautions{border-left:4px solid var(--warn);background:var(--card);
padding:4px 16px;margin:1em 0}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th{text-align:left;color:var(--soft);font-weight:600}
td,th{padding:6px 10px 6px 0;border-bottom:1px solid var(--line);
vertical-align:top}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.pair{display:flex;flex-wrap:wrap;gap:16px}.pair>figure{flex:1 1 420px;margin:0}
code{font-size:.85em;overflow-wrap:anywhere}
@media (max-width:640px){thead{display:none}tr{display:block;
border-bottom:1px solid var(--line);padding:8px 0}td{display:flex;
justify-content:space-between;gap:16px;border:0;padding:2px 0;text-align:right}
td::before{content:attr(data-title);color:var(--soft);text-align:left;
flex:none}td>span{min-width:0}
td.wide{display:block;text-align:left}td.wide::before{content:none}
.pair>figure{flex-basis:280px}}
@media print{h2{break-after:avoid}figure,tr{break-inside:avoid}}
"""


def whole_page(title: str, body: str) -> str:
    """Returns a page of our style, from a plain title and HTML."""
    title = escaped(title)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{title}</h1>{body}</main></body></html>\n"
    )


def paragraphs_of(texts: Iterable[str]) -> str:
    """Returns a paragraph for each text."""
    return "".join(f"<p>{escaped(each)}</p>" for each in texts)


def list_of(texts: Iterable[str]) -> str:
    """Returns a list with an item for each text."""
    # No line begins with a percent sign.
    items = (escaped(each).replace(" %", _NO_BREAK) for each in texts)
    return "<ul>" + "".join(f"<li>{each}</li>" for each in items) + "</ul>"


def table_of(table: Table) -> str:
    """Returns a table whose rows are blocks on a narrow page."""

    def lines(cell: str) -> str:
        return "<br>".join(map(escaped, cell.split("\n")))

    def kind(index: int) -> str:
        if index in table.numbers:
            return ' class="number"'
        return ' class="wide"' if index >= table.short else ""

    head = "".join(
        f"<th{kind(index)}>{escaped(title)}</th>"
        for index, title in enumerate(table.titles)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{kind(index)} data-title="{escaped(table.titles[index])}">'
            f"<span>{lines(cell)}</span></td>"
            for index, cell in enumerate(row)
        )
        + "</tr>"
        for row in table.rows
    )
    notes = "".join(
        f'<p class="soft">{escaped(each)}</p>' for each in table.notes
    )
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"{notes}"
    )


def escaped(text: str) -> str:
    """Returns a text on one line, as HTML shows it."""
    return html.escape(on_one_line(text))
