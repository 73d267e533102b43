"""The trade-off curve: what an attacker can know of one person."""

import numpy as np

from keras_dp.accountants.attacks.trade_off import TradeOff
from keras_dp.reporting.chart import Axis, Chart, Points
from keras_dp.reporting.wording import percent

# The least rate on logarithmic axes, and how many points a line has.
_LEAST, _POINTS = 1e-5, 121


def trade_off_picture(curve: TradeOff, *, logarithmic: bool = False) -> str:
    """Returns an SVG picture of what every attack is bounded by.

    Attacks can be in the shaded area, and nowhere above it. On logarithmic
    axes the attacks that seldom accuse wrongly are seen.

    Args:
        curve: From `accountants.trade_off`.
        logarithmic: Whether both axes are.

    Returns:
        An `<svg>` element that is complete by itself.

    >>> picture = trade_off_picture(TradeOff((0.0, 1.0), (0.4, 0.01)))
    >>> picture[:5], "right at most 70 % of the time" in picture
    ('<svg ', True)
    """
    low = _LEAST if logarithmic else 0.0
    x = Axis(
        "wrongly accused (false positive rate)",
        low,
        1.0,
        logarithmic,
        is_share=True,
    )
    y = Axis(
        "rightly accused (true positive rate)",
        low,
        1.0,
        logarithmic,
        is_share=True,
    )
    chart = Chart(x, y)
    most = _most(curve, logarithmic)
    guesses = [(rate, rate) for rate, _ in most]
    chart.area([(low, low), *most, (1.0, 1.0), *reversed(guesses)])
    chart.line(guesses, "guess")
    chart.line(most, "k0")
    if logarithmic:
        chart.note(0.6, 1.5e-5, "no attack is above the line", "end")
        chart.note(0.6, 3.5e-5, "guessing: dashed", "end")
    else:
        chart.note(0.97, 0.05, "no attack is above the line", "end")
        chart.note(0.97, 0.12, "guessing: dashed", "end")
    right = percent(0.5 + 0.5 * curve.advantage)
    hits = percent(float(curve.largest_true_positive_rate(0.001)))
    return chart.svg(
        "What an attacker can find out of one person: who has to guess is "
        f"right at most {right} of the time; with 1 in 1,000 wrong "
        f"accusations, at most {hits} are found."
    )


def _most(curve: TradeOff, logarithmic: bool) -> Points:
    """Returns points of the bound, in rising order."""
    rates = (
        np.geomspace(_LEAST, 1.0, _POINTS)
        if logarithmic
        else np.linspace(0.0, 1.0, _POINTS)
    )
    heights = curve.largest_true_positive_rate(rates)
    return [*zip(rates.tolist(), heights.tolist(), strict=True)]
