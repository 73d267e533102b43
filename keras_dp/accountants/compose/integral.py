"""Delta of composed rounds, by an integral along a vertical line.

With `K(s)` the sum of the logs of the moment generating functions of the
rounds' privacy losses, and any `c > 0`,

    delta(e) = 1/(2 pi i) int_(c-i inf)^(c+i inf) e^(K(s) - s e) / (s (s+1)) ds.

Next to the saddle point nothing cancels: precision is relative, `1e-30` is as
easy as `1e-5`. The errors of the trapezoidal rule, of the end of the line, of
the quadrature of `K` and of rounding are bounded and added, or subtracted.

*Smoothing.* Few rounds, or rounds with an atom, have a characteristic function
that falls slowly. Together with one more Gaussian release, of sensitivity `h`
in its noise stddevs, it falls like `e^(-h^2 t^2 / 2)`. Let
`H(y) = E_Q[(L - y)_+]` be delta at `epsilon = log y`, with the likelihood ratio
`L` of all rounds, and
`H_h` the same with the release. It multiplies `L` with a log-normal number of
mean 1, so that `H_h(y) - H(y) = E_Q[v_h(L)]`, with the time value of an option

    v_h(x) = sqrt(x y) int_0^h f(0) e^(-log(x/y)^2 / (2 r^2) - r^2 / 8) dr

in the model of Black and Scholes, `f` the normal density. It is not negative:
`H <= H_h`. With `r` twice as large the first exponent is a quarter, so that
`v_2h >= 2 e^(-3 h^2 / 8) v_h`. Hence, with `k = e^(3 h^2 / 8) / 2`,

    H_h - H <= k (H_2h - H),    H >= (H_h - k H_2h) / (1 - k).

Both bounds are off by the second order of `h`, whatever the rounds are.

Source: Zhu, Dong, Wang (2022), arXiv:2106.08567v4, for the characteristic
function of the loss. The line, its saddle point and the bounds are ours.
"""

import math
from typing import NamedTuple

from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.line import (
    MOST_POINTS,
    MOST_WORK,
    Line,
    LinePlace,
    lines_at,
    place_near,
)
from keras_dp.errors import TooSlowError

# Tolerated error of delta, as a share of what the width allows.
_TOLERATED = 0.1
# This little costs a line without smoothing hardly more points. Then it is
# good some nats away too.
_PRECISE = 1e-12
# Shares of the best tilt that may do as well.
_LOWER = (1.0, 0.35, 0.12, 0.04)
# A line is not worth its time if smoothing leaves this share of the width.
_WORTHWHILE = 0.5
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

    `line` is that of the rounds, with smoothing or without. With smoothing,
    `wider` has twice of it, and `share` is `k`.
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


class Target(NamedTuple):
    """Where bounds on delta are to be good, and how good.

    There log delta is about `log_delta`, and falls with epsilon about as fast
    as the slope says. Bounds on it may be apart by the width.
    """

    epsilon: float
    log_delta: float
    slope: float
    width: float


def bounds_near(
    composition: Composition, tilt: float, target: Target, known: float
) -> Profile:
    """Returns bounds on delta that are good next to a target.

    The tilt is that of the best bound by moments. Bounds on log delta are
    `known` apart already.

    Raises `TooSlowError` if the line is too long or a moment has no
    quadrature, and `NumericalLimitError` if a moment is not finite.
    """
    epsilon, _, slope, width = target
    tolerance = _TOLERATED * width / max(slope * epsilon, 1.0)
    for each in (min(tolerance, _PRECISE), tolerance):
        place = _place(composition, tilt, target, each)
        smoothing = width_of(place, target)
        if not smoothing:
            (line,) = lines_at([place], epsilon)
            return Profile(line, None, 0.0)
    if smoothed_by(smoothing, slope) > _WORTHWHILE * known:
        raise TooSlowError
    noisier, noisiest, share = smoothed(place, smoothing)
    line, wider = lines_at([noisier, noisiest], epsilon)
    return Profile(line, wider, share)


def _place(
    composition: Composition, tilt: float, target: Target, tolerance: float
) -> LinePlace:
    for each in _LOWER:
        try:
            return place_near(
                composition,
                each * tilt,
                target.epsilon,
                target.log_delta,
                tolerance,
            )
        except TooSlowError:  # Nodes are fewer at a lower tilt.
            continue
    raise TooSlowError


def smoothed(
    place: LinePlace, width: float
) -> tuple[LinePlace, LinePlace, float]:
    """Returns the place with smoothing, with twice as much, and `k`."""
    return (
        place.with_noise(width**2),
        place.with_noise(4 * width**2),
        math.exp(3 * width**2 / 8) / 2,
    )


def smoothed_by(width: float, slope: float) -> float:
    """Returns about how far apart smoothing leaves bounds on log delta.

    Where `H` falls like `y^-b` with `b = slope`, `h = width` leaves them
    `3 b (b+1) h^2 / 2` apart.
    """
    return 1.5 * slope * (slope + 1) * width**2


def width_of(place: LinePlace, target: Target) -> float:
    """Returns `h`, or 0 where the line is short without smoothing.

    With it bounds on log delta are about as far apart as they may be.
    """
    work = _LITTLE_WORK if target.width > _WIDE else MOST_WORK
    most = min(work / place.paths.size, MOST_POINTS / 2)
    square = _SHARE * target.width / smoothed_by(1.0, target.slope)
    width = max(math.sqrt(square), _REACH / (most * place.step), _LEAST_WIDTH)
    width = min(width, _MOST_SMOOTHING)
    size = min(_REACH / (width * place.step), most)
    try:
        end, _ = place.end(target.epsilon)
    except TooSlowError:
        return width
    is_short = end / place.step <= max(_LONGER * size, _FEW_POINTS)
    return 0.0 if is_short and end / place.step <= most else width
