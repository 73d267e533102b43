"""Writes a report as one HTML page that needs no other file."""

import html
import math
from collections.abc import Iterable, Iterator, Sequence

from keras_dp._version import __version__
from keras_dp.accountants.claim import shown_epsilon
from keras_dp.auditing.verdicts import Judgement
from keras_dp.ledger import SealRecord
from keras_dp.reporting.account_state import AccountState
from keras_dp.reporting.pictures import (
    epsilon_picture,
    explanation_block,
    query_picture,
)
from keras_dp.reporting.query_costs import OTHERS, TOGETHER, QueryCost
from keras_dp.reporting.report import SO_FAR, Details, Report, relation_of
from keras_dp.reporting.run_costs import RunCost, states_in_words
from keras_dp.reporting.wording import (
    counted,
    described,
    moment,
    on_one_line,
    sampled,
)

# The numbers of bars and of kinds of rounds on a page; the JSON has all.
_MOST_BARS, _MOST_ROUNDS = 12, 10

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
.whole{white-space:nowrap}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.pair{display:flex;flex-wrap:wrap;gap:16px}.pair>figure{flex:1 1 420px;margin:0}
.track{background:var(--line);height:14px;border-radius:7px;overflow:hidden;
margin:4px 0}.track>div{background:var(--a);height:100%}
code,.hash{font-size:.85em;overflow-wrap:anywhere}
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
    ('<!DOCTYPE html>', 4, False)
    """
    details = report.details
    if details is None:
        raise ValueError(
            "`report` must have its details. Received: a report without "
            "details. Make it with `make_report(..., details=True)`."
        )
    title = f"Privacy of {on_one_line(report.dataset)}"
    return page(title, "".join(_sections(report, details)))


def page(title: str, body: str) -> str:
    """Returns an HTML page of our style, which needs no other file.

    Args:
        title: Plain text.
        body: HTML.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{_text(title)}</h1>{body}</main></body></html>\n"
    )


def _sections(report: Report, details: Details) -> Iterator[str]:
    if report.contradictions:
        yield '<section class="cautions">'
        yield paragraphs(report.contradictions)
        yield "</section>"
    yield paragraphs(report.summary)
    yield '<div class="claim">'
    yield paragraphs((report.plain_words, *report.sentences))
    yield "</div>"
    if report.cautions:
        items = "".join(f"<li>{_text(each)}</li>" for each in report.cautions)
        yield (
            '<section class="cautions"><h3>Before you believe it</h3>'
            f"<ul>{items}</ul></section>"
        )
    if any(each.run.number for each in report.runs):
        yield "<h2>Who spent it</h2>"
        yield _runs(report.runs)
        if report.guarantee.basis == "account":
            yield f'<p class="soft">{_text(SO_FAR)}</p>'
    if report.accounts:
        yield "<h2>Accounts, which no run exceeds</h2>"
        yield from map(_account, report.accounts)
    yield "<h2>What an attacker can know</h2>"
    if report.chosen:
        yield "<p>This is about the whole ledger, not only the chosen runs.</p>"
    yield explanation_block(details.explanation)
    yield "<h2>How epsilon came about</h2>"
    yield _pictures(report, details)
    yield "<h2>What was released</h2>"
    yield from _rounds(report)
    if report.seals:
        yield "<h2>Seals, before which no row changes</h2>"
        yield _seals(report.seals)
    if report.audits:
        yield "<h2>Audits, beside what is certified of the same</h2>"
        yield _audits(report.audits)
    yield "<h2>About this report</h2>"
    yield from _about(report, details)


def _runs(costs: Sequence[RunCost]) -> str:
    titles = (
        *("run", "what for", "by", "when (UTC)", "state"),
        *("rounds", "epsilon alone", "so far"),
    )
    rows = []
    for cost in costs:
        run, start = cost.run, cost.run.start
        rounds = f"{len(run):,}"
        if cost.planned is not None and cost.planned != len(run):
            rounds += f" of {cost.planned:,} planned"
        about, who, when = "", "", ""
        if start is not None:
            about = start.purpose
            if start.description:
                about += f": {start.description}"
            if start.account is not None:
                about += f" (account {start.account})"
            who = f"{start.author.user}@{start.author.host}"
            when = moment(run.started)
        rows.append(
            (
                f"{run.number}: {cost.name}",
                *(about, who, when, cost.state, rounds),
                shown_epsilon(cost.epsilon),
                shown_epsilon(cost.total_epsilon),
            )
        )
    return (
        table(titles, rows, numbers=(5, 6, 7), whole=(3,))
        + "".join(
            f'<p class="soft">{_text(phrase)}</p>'
            for phrase in states_in_words(costs)
        )
        + '<p class="soft">Alone: the epsilon if nothing else had been '
        "released. A run that kept to its plan has the epsilon of its plan. "
        "Epsilons do not add up: the last column composes all runs so far.</p>"
    )


def _account(state: AccountState) -> str:
    budget = state.budget
    share = min(1.0, max(0.0, state.share))
    parent = state.record.account.parent
    shared = "" if parent is None else f", a share of {parent}"
    promise = (
        f"{budget.kind}{shared}: epsilon <= {budget.epsilon:g} at delta = "
        f"{budget.delta:g}, {budget.neighbours.replace('_', ' ')}"
    )
    return (
        f"<h3>{_text(state.name)}</h3><p>{_text(promise)}</p>"
        f'<div class="track" role="img" aria-label="{_text(state.spent)}">'
        f'<div style="width:{100 * share:.2f}%"></div></div>'
        f"<p>{_text(state.spent)}</p>"
        f'<p class="soft">Theorem: {_text(budget.theorem)}</p>'
    )


def _pictures(report: Report, details: Details) -> str:
    pictures = []
    if details.curves:
        pictures.append(
            (
                "Epsilon against rounds, by accountant",
                epsilon_picture(details.curves, delta=report.delta),
            )
        )
    if len(report.runs) > 1:
        pictures.append(
            (
                "Cost of each run alone, and of all together",
                query_picture(
                    _bars(report.runs), delta=report.delta, each_one="run"
                ),
            )
        )
    pictures.append(
        (
            "Cost of each query alone, and of all together",
            query_picture(details.queries, delta=report.delta),
        )
    )
    note = ""
    if report.guarantee.ex_post is not None:
        note = (
            '<p class="soft">Epsilon against rounds and the cost of queries '
            "are for the rounds that ran. A run that kept to its plan has the "
            "epsilon of its plan.</p>"
        )
    return (
        f'{note}<div class="pair">'
        + "".join(
            f"<figure><h3>{_text(title)}</h3>{picture}</figure>"
            for title, picture in pictures
        )
        + "</div>"
    )


def _bars(costs: Sequence[RunCost]) -> list[QueryCost]:
    """Returns the runs with the largest epsilons, and all runs together."""
    bars = [
        QueryCost(f"{each.run.number}: {each.name}", each.epsilon)
        for each in costs
    ]
    if len(bars) > _MOST_BARS:
        bars.sort(key=lambda each: -each.epsilon)
        left = len(bars) - _MOST_BARS + 1
        cheapest = bars[_MOST_BARS - 1].epsilon
        name = f"{OTHERS}: {left:,}, at most each"
        bars = [*bars[: _MOST_BARS - 1], QueryCost(name, cheapest)]
    total = costs[-1].total_epsilon
    return [*bars, QueryCost(TOGETHER, total, is_total=True)]


def _rounds(report: Report) -> Iterator[str]:
    rows = [
        (
            f"{count:,}",
            sampled(round_.sampling),
            "\n".join(described(query) for query in round_.queries),
        )
        for round_, count in report.rounds[:_MOST_ROUNDS]
    ]
    yield table(
        ("rounds", "sample", "released over it"), rows, (0,), wide=(1, 2)
    )
    left = report.rounds[_MOST_ROUNDS:]
    if left:
        rest = counted(sum(count for _, count in left), "round")
        kinds = counted(len(left), "other kind")
        yield f"<p>{rest} of {kinds}, which the JSON report shows.</p>"
    costs = [x for x in report.costs if x.is_bound and math.isfinite(x.epsilon)]
    if costs:
        yield (
            "<h3>Upper bounds on the epsilon of these rounds at delta = "
            f"{report.delta!r}, {_text(relation_of(report))}</h3>"
        )
        yield table(
            ("accountant", "epsilon"),
            [(each.accountant, shown_epsilon(each.epsilon)) for each in costs],
            (1,),
        )


def _seals(seals: Sequence[SealRecord]) -> str:
    rows = [
        (f"{seal.number:,}", moment(seal.time), seal.hash, seal.note)
        for seal in seals
    ]
    found = table(("row", "when (UTC)", "hash", "note"), rows, wide=(2,))
    return f'<div class="hash">{found}</div>'


def _audits(audits: Sequence[Judgement]) -> str:
    rows = []
    for audit in audits:
        verdict = audit.record.verdict
        assumptions = "\n".join(f"if {each}" for each in verdict.assumptions)
        rows.append(
            (
                f"{audit.record.number:,}",
                moment(audit.record.time),
                f"{audit.sentence} ({verdict.statistic})",
                assumptions,
            )
        )
    titles = ("row", "when (UTC)", "found", "what it takes for granted")
    return table(titles, rows, wide=(2, 3)) + (
        '<p class="soft">A lower bound far below what is certified shows '
        "nothing: attacks may be weak, and canaries few.</p>"
    )


def _about(report: Report, details: Details) -> Iterator[str]:
    place = report.place or "a ledger in memory"
    yield (
        f"<p>Made by keras_dp {_text(__version__)} of {_text(place)}. Its "
        f"{counted(details.rows, 'row')} were verified: they are as they were "
        "written, unless somebody computed all hashes anew. Its head is "
        f"<code>{_text(details.head)}</code>; a head or a certificate that was "
        "kept elsewhere shows whether the ledger is the same.</p>"
    )
    if report.versions:
        yield table(
            ("library", "versions in the runs"),
            [(name, ", ".join(each)) for name, each in report.versions.items()],
        )


def paragraphs(texts: Iterable[str]) -> str:
    """Returns a paragraph of HTML for each plain text."""
    return "".join(f"<p>{_text(each)}</p>" for each in texts)


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[int] = (),
    wide: Sequence[int] = (),
    whole: Sequence[int] = (),
) -> str:
    """Returns a table whose rows are blocks on a narrow page.

    Args:
        titles: The titles of the columns.
        rows: The rows, with the text of each cell.
        numbers: The indices of columns that are aligned to the right.
        wide: The indices of columns that take a whole line on a narrow page.
        whole: The indices of columns whose lines are not broken.
    """

    def kind(index: int) -> str:
        columns = {"number": numbers, "wide": wide, "whole": whole}
        names = [name for name in columns if index in columns[name]]
        return f' class="{" ".join(names)}"' if names else ""

    head = "".join(
        f"<th{kind(index)}>{_text(title)}</th>"
        for index, title in enumerate(titles)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{kind(index)} data-title="{_text(titles[index])}">'
            f"{_lines(cell)}</td>"
            for index, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _lines(cell: str) -> str:
    lines = "<br>".join(_text(line) for line in cell.split("\n"))
    return f"<span>{lines}</span>"


def _text(text: str) -> str:
    return html.escape(on_one_line(text))
