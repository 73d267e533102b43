"""Writes a report or a certificate as one page that needs no other file."""

import math
from collections.abc import Iterator

from keras_dp._version import __version__
from keras_dp.accountants.claim import shown_epsilon
from keras_dp.ledger import Header
from keras_dp.reporting.certificate import HOW_TO_CHECK, Certificate
from keras_dp.reporting.explanation import Explanation
from keras_dp.reporting.html_page import (
    escaped,
    list_of,
    paragraphs_of,
    table_of,
    whole_page,
)
from keras_dp.reporting.limits import LIMITS
from keras_dp.reporting.pictures.trade_off_picture import trade_off_picture
from keras_dp.reporting.report import BEFORE, Details, Report, relation_of
from keras_dp.reporting.tables import Table
from keras_dp.reporting.wording import counted


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
    details = report.required_details()
    return whole_page(
        f"Privacy of {report.dataset}", "".join(_sections(report, details))
    )


def certificate_page(certificate: Certificate) -> str:
    """Returns a certificate as a page to print and to sign by hand.

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
    return whole_page(
        f"Privacy certificate of {header.dataset}",
        f'<div class="claim">{paragraphs_of(certificate.sentences)}</div>'
        f"{table_of(Table(('', ''), facts))}<h2>How to check it</h2>"
        f"{paragraphs_of((HOW_TO_CHECK,))}"
        f"<h2>What it does not cover</h2>{list_of(LIMITS)}"
        '<p style="margin-top:4em">Date, name, signature:</p>',
    )


def _sections(report: Report, details: Details) -> Iterator[str]:
    yield paragraphs_of(report.summary)
    claim = paragraphs_of((report.plain_words, *report.sentences))
    yield f'<div class="claim">{claim}</div>'
    if report.cautions:
        items = list_of(report.cautions)
        yield f'<div class="cautions"><h3>{BEFORE}</h3>{items}</div>'
    tables = report.tables()
    _, rounds = tables.popitem()
    for title, table in tables.items():
        yield f"<h2>{title}</h2>{table_of(table)}"
    yield "<h2>What an attacker can know</h2>"
    yield from _explanation(details.explanation)
    yield f"<h2>What was released</h2>{table_of(rounds)}"
    costs = tuple(
        (each.accountant, shown_epsilon(each.epsilon))
        for each in report.costs
        if each.is_bound and math.isfinite(each.epsilon)
    )
    if costs:
        yield (
            "<h3>Upper bounds on the epsilon of these rounds at delta = "
            f"{report.delta!r}, {escaped(relation_of(report))}</h3>"
        )
        yield table_of(Table(("accountant", "epsilon"), costs, numbers=(1,)))
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
        yield f"<h3>{escaped(title)}</h3>{list_of(sentences)}"


def _about(report: Report, details: Details) -> str:
    place = report.place or "a ledger in memory"
    text = (
        f"<p>Made by keras_dp {escaped(__version__)} of {escaped(place)}. Its "
        f"{counted(details.rows, 'row')} were verified: they are as they were "
        "written, unless somebody computed all hashes anew. Its head is "
        f"<code>{escaped(details.head)}</code>; a head or a certificate that "
        "was kept elsewhere shows whether the ledger is the same.</p>"
    )
    versions = tuple(
        (name, ", ".join(each)) for name, each in report.versions.items()
    )
    titles = ("library", "versions in the runs")
    return text + (table_of(Table(titles, versions)) if versions else "")
