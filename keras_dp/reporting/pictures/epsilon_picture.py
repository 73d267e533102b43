"""Epsilon against the number of rounds, by accountant."""

import math
from collections.abc import Mapping

from keras_dp.accountants.claim import shown_epsilon
from keras_dp.planning.epsilon_curve import EpsilonCurve
from keras_dp.reporting.pictures.axis import Axis
from keras_dp.reporting.pictures.svg import KINDS, Chart

# The share of the axis above the highest curve, where the legend is.
_HEADROOM = 1.3


def epsilon_picture(curves: Mapping[str, EpsilonCurve], *, delta: float) -> str:
    """Returns an SVG picture of epsilon as it grew.

    Args:
        curves: By accountant, at most four; each from `epsilon_curve`.
        delta: All curves are at it.

    Returns:
        An `<svg>` element that is complete by itself. Infinite epsilons are
        left out.

    Raises:
        ValueError: There are more than four curves.
    """
    if len(curves) > KINDS:
        raise ValueError(
            f"`curves` must be at most {KINDS}, to be told apart. "
            f"Received: {[*curves]!r}."
        )
    lines = {
        name: [
            (float(rounds), float(epsilon))
            for rounds, epsilon in zip(
                curve.rounds, curve.epsilons, strict=True
            )
            if math.isfinite(epsilon)
        ]
        for name, curve in curves.items()
    }
    points = [point for line in lines.values() for point in line]
    highest = max((epsilon for _, epsilon in points), default=0.0)
    x = Axis("rounds", 0.0, max((n for n, _ in points), default=0.0) or 1.0)
    y = Axis(f"epsilon at delta = {delta:g}", 0.0, _HEADROOM * highest or 1.0)
    chart = Chart(x, y)
    for index, line in enumerate(lines.values()):
        chart.line(line, f"k{index}")
    chart.legend([*lines])
    last = "; ".join(
        f"{name}: {shown_epsilon(float(curve.epsilons[-1]))}"
        for name, curve in curves.items()
        if curve.epsilons.size
    )
    return chart.svg(
        f"Epsilon at delta = {delta:g} against the number of rounds. After "
        f"all rounds: {last or '0'}."
    )
