"""Bounds for an integrand that hardly falls, from a little noise more.

Few rounds, or rounds with an atom, have a characteristic function that falls
slowly. Together with one more Gaussian release, of sensitivity `h` in its
noise stddevs, it falls like `e^(-h^2 t^2 / 2)`. Let `H(y) = E_Q[(L - y)_+]` be
delta at `epsilon = log y`, with the likelihood ratio `L` of all rounds, and
`H_h` the same with the release. It multiplies `L` with a log-normal number of
mean 1, so that `H_h(y) - H(y) = E_Q[v_h(L)]`, with the time value of an option

    v_h(x) = sqrt(x y) int_0^h f(0) e^(-log(x/y)^2 / (2 r^2) - r^2 / 8) dr

in the model of Black and Scholes, `f` the normal density. It is not negative:
`H <= H_h`. With `r` twice as large the first exponent is a quarter, so that
`v_2h >= 2 e^(-3 h^2 / 8) v_h`. Hence, with `k = e^(3 h^2 / 8) / 2`,

    H_h - H <= k (H_2h - H),    H >= (H_h - k H_2h) / (1 - k).

Both bounds are off by the second order of `h`, whatever the rounds are.
"""

import math
from typing import NamedTuple

from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.line.line import (
    MOST_POINTS,
    MOST_WORK,
    Line,
    Place,
)
from keras_dp.errors import TooSlowError

# exp(-x^2 / 2) is below all tolerances at this `x`.
_REACH = 9.0
# Largest product of nodes and points for wide bounds, which only find the place
# of narrow ones: a tenth of a second. With less, hundreds of kinds of rounds
# take many lines.
_LITTLE_WORK = 6e7
_WIDE = 0.01
# A line without smoothing may be this many times as long, or have this many
# points.
_LONGER, _FEW_POINTS = 1.5, 4000
# The share of the width that smoothing takes.
_SHARE = 0.7
# Smaller noise changes nothing in float64.
_LEAST_WIDTH = 1e-150
# With more smoothing there would be no lower bound.
_MOST_SMOOTHING = 0.5


class Profile(NamedTuple):
    """Bounds on delta, good for all epsilon near one.

    Attributes:
        line: The line of the rounds, with smoothing or without.
        wider: The line with twice the smoothing, if there is any.
        share: `k`.
    """

    line: Line
    wider: Line | None
    share: float

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """Returns a lower and an upper bound on the log of delta."""
        lower, upper = self.line.log_delta(epsilon)
        if self.wider is None or lower == -math.inf:
            return lower, upper
        excess = self.wider.log_delta(epsilon)[1] - lower
        left = 1 - self.share * math.exp(min(excess, 1.0))
        if left <= 0:
            return -math.inf, upper
        return lower + math.log(left / (1 - self.share)), upper


def smoothed(
    composition: Composition, width: float
) -> tuple[Composition, Composition, float]:
    """Returns the rounds with smoothing, with twice as much, and `k`."""
    return (
        composition.with_noise(width**2),
        composition.with_noise(4 * width**2),
        math.exp(3 * width**2 / 8) / 2,
    )


def smoothed_by(width: float, slope: float) -> float:
    """Returns about how far apart smoothing leaves bounds on log delta.

    Where `H` falls like `y^-b`, they are `3 b (b+1) h^2 / 2` apart.

    Args:
        width: `h`.
        slope: `b`, about.
    """
    return 1.5 * slope * (slope + 1) * width**2


def width_of(
    place: Place,
    composition: Composition,
    epsilon: float,
    slope: float,
    wanted: float,
) -> float:
    """Returns `h`, or 0 where the line is short without smoothing.

    Args:
        place: The place of the line.
        composition: The rounds to be integrated.
        epsilon: About.
        slope: `b`, about.
        wanted: How far apart bounds on log delta may be.
    """
    work = _LITTLE_WORK if wanted > _WIDE else MOST_WORK
    most = min(work / place.paths.size, MOST_POINTS / 2)
    square = _SHARE * wanted / smoothed_by(1.0, slope)
    width = max(math.sqrt(square), _REACH / (most * place.step), _LEAST_WIDTH)
    width = min(width, _MOST_SMOOTHING)
    size = min(_REACH / (width * place.step), most)
    try:
        end, _ = place.end(composition, epsilon)
    except TooSlowError:
        return width
    is_short = end / place.step <= max(_LONGER * size, _FEW_POINTS)
    return 0.0 if is_short and end / place.step <= most else width
