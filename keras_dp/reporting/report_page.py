"""Writes a report or a certificate as one page that needs no other file."""

import html
import math
from collections.abc import Iterable, Iterator

from keras_dp._version import __version__
from keras_dp.accountants.claim import shown_epsilon
from keras_dp.ledger import Header
from keras_dp.reporting.certificate import HOW_TO_CHECK, Certificate
from keras_dp.reporting.explanation import Explanation
from keras_dp.reporting.pictures.trade_off_picture import trade_off_picture
from keras_dp.reporting.report import BEFORE, Details, Report, relation_of
from keras_dp.reporting.tables import Table
from keras_dp.reporting.wording import counted, on_one_line

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


def report_page(report: Report) -> str:
    """Returns an HTML page that needs no other file, no script, no network.

    Args:
        report: A report that `make_report(..., details=True)` returned.

    Raises:
        ValueError: The report was made without details.

    >>> from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
    >>> from keras_dp.reporting.report import make_report
    >>> ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    >>> ledger.record(FullDataset(), [GaussianSum("counts", 1.0, 4.0)])
    >>> page = report_page(make_report(ledger, delta=1e-5, details=True))
    >>> page[:15], page.count("<svg "), "<script" in page
    ('<!DOCTYPE html>', 2, False)
    """
    details = report.details
    if details is None:
        raise ValueError(
            "`report` must have its details. Received: a report without "
            "details. Make it with `make_report(..., details=True)`."
        )
    return _page(
        f"Privacy of {report.dataset}", "".join(_sections(report, details))
    )


def certificate_page(certificate: Certificate) -> str:
    """Returns a certificate as a page to print and to sign by hand.

    Args:
        certificate: A certificate, signed or not.

    >>> from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
    >>> from keras_dp.reporting.certificate import certify
    >>> ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    >>> ledger.record(FullDataset(), [GaussianSum("counts", 1.0, 4.0)])
    >>> certificate_page(certify(ledger, delta=1e-5))[:15]
    '<!DOCTYPE html>'
    """
    header = Header.from_text(certificate.header)
    facts = (
        ("Hash of the seal", certificate.seal_hash),
        ("Signed by the Ed25519 key", certificate.public_key or "none"),
        ("Signature", certificate.signature or "none"),
        ("Made by", f"keras_dp {certificate.version}"),
    )
    return _page(
        f"Privacy certificate of {header.dataset}",
        f'<div class="claim">{_paragraphs(certificate.sentences)}</div>'
        f"{_table(Table(('', ''), facts))}<h2>How to check it</h2>"
        f"{_paragraphs(HOW_TO_CHECK)}"
        '<p style="margin-top:4em">Date, name, signature:</p>',
    )


def _page(title: str, body: str) -> str:
    """Returns a page of our style, from a plain title and HTML."""
    title = _text(title)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{title}</h1>{body}</main></body></html>\n"
    )


def _sections(report: Report, details: Details) -> Iterator[str]:
    if report.contradictions:
        warnings = _paragraphs(report.contradictions)
        yield f'<div class="cautions">{warnings}</div>'
    yield _paragraphs(report.summary)
    claim = _paragraphs((report.plain_words, *report.sentences))
    yield f'<div class="claim">{claim}</div>'
    if report.cautions:
        items = _items(report.cautions)
        yield f'<div class="cautions"><h3>{BEFORE}</h3>{items}</div>'
    tables = report.tables()
    _, rounds = tables.popitem()
    for title, table in tables.items():
        yield f"<h2>{title}</h2>{_table(table)}"
    yield "<h2>What an attacker can know</h2>"
    yield from _explanation(details.explanation)
    yield f"<h2>What was released</h2>{_table(rounds)}"
    costs = tuple(
        (each.accountant, shown_epsilon(each.epsilon))
        for each in report.costs
        if each.is_bound and math.isfinite(each.epsilon)
    )
    if costs:
        yield (
            "<h3>Upper bounds on the epsilon of these rounds at delta = "
            f"{report.delta!r}, {_text(relation_of(report))}</h3>"
        )
        yield _table(Table(("accountant", "epsilon"), costs, numbers=(1,)))
    yield f"<h2>About this report</h2>{_about(report, details)}"


def _explanation(explanation: Explanation) -> Iterator[str]:
    """Yields what epsilon means: the bound on attacks, and sentences."""
    curve = explanation.curve
    if curve is not None:
        pictures = "".join(
            f"<figure>{trade_off_picture(curve, logarithmic=each)}</figure>"
            for each in (False, True)
        )
        yield f'<div class="pair">{pictures}</div>'
    for title, sentences in explanation.paragraphs:
        yield f"<h3>{_text(title)}</h3>{_items(sentences)}"


def _about(report: Report, details: Details) -> str:
    place = report.place or "a ledger in memory"
    text = (
        f"<p>Made by keras_dp {_text(__version__)} of {_text(place)}. Its "
        f"{counted(details.rows, 'row')} were verified: they are as they were "
        "written, unless somebody computed all hashes anew. Its head is "
        f"<code>{_text(details.head)}</code>; a head or a certificate that was "
        "kept elsewhere shows whether the ledger is the same.</p>"
    )
    versions = tuple(
        (name, ", ".join(each)) for name, each in report.versions.items()
    )
    titles = ("library", "versions in the runs")
    return text + (_table(Table(titles, versions)) if versions else "")


def _paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{_text(each)}</p>" for each in texts)


def _items(texts: Iterable[str]) -> str:
    # No line begins with a percent sign.
    items = (_text(each).replace(" %", _NO_BREAK) for each in texts)
    return "<ul>" + "".join(f"<li>{each}</li>" for each in items) + "</ul>"


def _table(table: Table) -> str:
    """Returns a table whose rows are blocks on a narrow page."""

    def kind(index: int) -> str:
        if index in table.numbers:
            return ' class="number"'
        return ' class="wide"' if index >= table.short else ""

    head = "".join(
        f"<th{kind(index)}>{_text(title)}</th>"
        for index, title in enumerate(table.titles)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{kind(index)} data-title="{_text(table.titles[index])}">'
            f"<span>{'<br>'.join(map(_text, cell.split(chr(10))))}</span></td>"
            for index, cell in enumerate(row)
        )
        + "</tr>"
        for row in table.rows
    )
    notes = "".join(
        f'<p class="soft">{_text(each)}</p>' for each in table.notes
    )
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"{notes}"
    )


def _text(text: str) -> str:
    return html.escape(on_one_line(text))
