"""Writes a certificate as one HTML page to print and to sign."""

from keras_dp.ledger import Header
from keras_dp.reporting.certificate import Certificate
from keras_dp.reporting.report_page import page, paragraphs, table
from keras_dp.reporting.wording import counted, moment


def certificate_page(certificate: Certificate) -> str:
    """Returns an HTML page that needs no other file, no script, no network.

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
    signed = "Nobody signed this certificate."
    if certificate.signature:
        signed = f"Signed by the Ed25519 key {certificate.public_key}."
    unit, rows = header.unit, header.rows_per_unit
    if rows > 1:
        unit += f", of at most {rows:,} records, as declared"
    facts = {
        "Data set": header.dataset,
        "Privacy unit": unit,
        "It covers": f"{counted(certificate.rounds, 'round')} in "
        f"{counted(certificate.runs, 'run')}",
        "Sealed": f"{moment(certificate.issued)} UTC, in row "
        f"{certificate.seal_row:,}",
        "Hash of the seal": certificate.seal_hash,
        "Signature": certificate.signature or "none",
        "Made by": f"keras_dp {certificate.version}",
    }
    title = f"Privacy certificate of {header.dataset}"
    return page(
        title,
        '<div class="claim">'
        + paragraphs(certificate.sentences)
        + "</div>"
        + table(("", ""), list(facts.items()), wide=(1,))
        + "<h2>How to check it</h2>"
        + paragraphs(
            (
                "Whoever has the ledger, a copy, or the ledger after it has "
                "grown runs `keras-dp verify LEDGER --against CERTIFICATE` "
                "with the file of this certificate. It computes the hash and "
                "epsilon anew.",
                signed,
                "A certificate does not prove that every release was "
                "recorded, nor that a unit is what its name says.",
            )
        )
        + '<p style="margin-top:4em">Date, name, signature:</p>',
    )
