"""An explanation as a part of an HTML page: pictures and sentences."""

import html

from keras_dp.reporting.explanation import Explanation, Paragraph
from keras_dp.reporting.pictures.trade_off_picture import trade_off_picture

_NO_BREAK = "\N{NO-BREAK SPACE}%"


def explanation_block(explanation: Explanation) -> str:
    """Returns what epsilon means as an HTML `<section>`.

    The pictures are complete by themselves, and stand side by side where the
    page is wide enough. All other style is the page's.

    Args:
        explanation: From `explain`.

    >>> from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
    >>> from keras_dp.reporting.explanation import explain
    >>> ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    >>> ledger.record(FullDataset(), [GaussianSum("counts", 1.0, 4.0)])
    >>> block = explanation_block(explain(ledger, delta=1e-5))
    >>> block[:17], block.count("<svg "), "<script" in block
    ('<section><p>epsil', 2, False)
    """
    parts = [f"<p>{html.escape(explanation.sentence)}</p>"]
    if explanation.curve is not None:
        pictures = "".join(
            '<figure style="flex:1 1 320px;margin:0">'
            f"{trade_off_picture(explanation.curve, logarithmic=each)}</figure>"
            for each in (False, True)
        )
        parts.append(
            '<div style="display:flex;flex-wrap:wrap;gap:16px">'
            f"{pictures}</div>"
        )
    parts += [_paragraph(each) for each in explanation.paragraphs]
    return f"<section>{''.join(parts)}</section>"


def _paragraph(paragraph: Paragraph) -> str:
    items = "".join(
        # No line begins with a percent sign.
        f"<li>{html.escape(sentence).replace(' %', _NO_BREAK)}</li>"
        for sentence in paragraph.sentences
    )
    return f"<h3>{html.escape(paragraph.title)}</h3><ul>{items}</ul>"
