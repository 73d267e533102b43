"""Delta of several parts together, and the least epsilon for a delta."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.compose.curve import (
    CLOSED_FORM,
    FIRST_WIDTH,
    LOWEST,
    MOMENTS,
    NEAR,
    DeltaBounds,
    Side,
)

# More than the rounding of a logarithm, as a share of it.
_ROUND_UP = 1e-15
_MOST_PLACES = 12
# A width this small can take a second; the largest number of such places.
_LONG, _MOST_LONG = 1e-4, 2
# Beyond, no float is finite.
_LARGEST, _LEAST, _FACTOR = 1e300, 1e-300, 8.0
# So near 0, in nats, bounds at 0 tell whether epsilon is 0.
_NEXT_TO_NOTHING = 1e-6
# Steps of the secant method.
_MOST_STEPS = 60
# Shares by which a lower bound may be below an upper one.
_BELOW = tuple(10.0**-power for power in range(10, -1, -1))
# The slope is that between epsilons that are this far apart, as a share.
_SLOPE = 1e-3
# Relative precision of a root. Each value is a sum of up to millions of points.
_NEAREST = 1e-11
# The same of the first one, which only tells where bounds are needed.
_NEAR_FIRST = 1e-3


class Known(NamedTuple):
    """The same bounds for every epsilon."""

    found: DeltaBounds

    def log_delta(
        self, epsilon: float, floor: float = -math.inf
    ) -> DeltaBounds:
        """See `Side`."""
        return self.found

    def prepare(
        self, epsilon: float, width: float, log_delta: float | None = None
    ) -> None:
        """See `Side`."""


# Rounds of which nothing is known, and no rounds.
UNKNOWN = Known(DeltaBounds(-math.inf, 0.0, MOMENTS))
NOTHING = Known(DeltaBounds(-math.inf, -math.inf, CLOSED_FORM))


class Least(NamedTuple):
    """The least of several upper bounds on one delta."""

    sides: tuple[Side, ...]

    def log_delta(
        self, epsilon: float, floor: float = -math.inf
    ) -> DeltaBounds:
        """See `Side`."""
        some = (each.log_delta(epsilon, floor) for each in self.sides)
        return min(some, key=lambda found: found.upper)

    def prepare(
        self, epsilon: float, width: float, log_delta: float | None = None
    ) -> None:
        """See `Side`."""
        for each in self.sides:
            each.prepare(epsilon, width, log_delta)


class Largest(NamedTuple):
    """The largest of several deltas.

    `more` is added to the upper bound on delta, and `remark` to the method.
    """

    sides: tuple[Side, ...]
    more: float = 0.0
    remark: str = ""

    def log_delta(
        self, epsilon: float, floor: float = -math.inf
    ) -> DeltaBounds:
        """See `Side`."""
        found: list[DeltaBounds] = []
        lower = -math.inf
        for each in self.sides:
            found.append(each.log_delta(epsilon, max(floor, lower)))
            lower = max(lower, found[-1].lower)
        best = max(found, key=lambda each: each.upper)
        upper = best.upper
        if self.more:
            upper = float(np.logaddexp(upper, _log(self.more)))
            upper += _ROUND_UP * (1 + abs(upper))
        return DeltaBounds(lower, upper, best.method + self.remark)

    def prepare(
        self, epsilon: float, width: float, log_delta: float | None = None
    ) -> None:
        """See `Side`."""
        found = [each.log_delta(epsilon) for each in self.sides]
        lower = max(each.lower for each in found)
        if log_delta is not None:
            log_delta = _log(math.exp(min(log_delta, 0.0)) - self.more)
            lower = max(lower, log_delta - LOWEST)
        for i in np.argsort([-each.upper for each in found]).tolist():
            if found[i].upper > lower or len(found) == 1:
                self.sides[i].prepare(epsilon, width, log_delta)
                lower = max(lower, self.sides[i].log_delta(epsilon).lower)


def _log(delta: float) -> float:
    return math.log(delta) if delta > 0 else -math.inf


def epsilon_bounds(
    side: Side, log_delta: float, relative_width: float
) -> tuple[float, float, str]:
    """Returns bounds on the least epsilon, and the method of the upper one.

    They may be apart by a share of the upper one.
    """

    @functools.cache
    def bounds(epsilon: float) -> DeltaBounds:
        return side.log_delta(epsilon, log_delta - LOWEST)

    def above(epsilon: float) -> float:
        return max(bounds(epsilon).upper - log_delta, -LOWEST)

    def below(epsilon: float) -> float:
        return max(bounds(epsilon).lower - log_delta, -LOWEST)

    def prepare(epsilon: float, share: float) -> None:
        side.prepare(epsilon, share, log_delta)
        bounds.cache_clear()

    at, slope = _first(above)
    if not 0 < at < math.inf:
        return 0.0, at, bounds(min(at, _LARGEST)).method
    share, longest = max(FIRST_WIDTH, relative_width), 0
    for places in range(2 * _MOST_PLACES):
        if bounds(at).width <= relative_width * slope * at:
            break
        longest += share <= _LONG
        if longest > _MOST_LONG:
            break
        prepare(at, share)
        before, at = at, _root(above, at, slope)
        if not at:
            break
        slope = _slope(above, at) or slope
        is_near = slope * abs(at - before) < NEAR
        if longest and is_near:
            break  # Rounding, or points, are what is left.
        is_known = bounds(at).width < NEAR
        if is_near or is_known or places >= _MOST_PLACES:
            share = relative_width
    if slope * at < _NEXT_TO_NOTHING:
        prepare(0.0, relative_width)
    if slope * at < NEAR and above(0.0) <= 0:
        return 0.0, 0.0, bounds(0.0).method
    at = _root(above, at, slope)
    upper, step = at, max(at * _NEAREST, _LEAST)
    while above(upper) > 0:
        upper, step = upper + step, 4 * step
        if upper > _LARGEST:
            return 0.0, math.inf, bounds(_LARGEST).method
    lower = _last(below, upper, slope)
    step = lower * _NEAREST
    while lower > 0 and below(lower) < 0:
        lower, step = max(0.0, lower - step), 4 * step
    return min(lower, upper), upper, bounds(upper).method


def _last(
    excess: Callable[[float], float], upper: float, slope: float
) -> float:
    """Returns about the last root up to an epsilon; 0 if there is none.

    Far from where bounds are good, a lower bound may be less than it was.
    """
    before = upper
    for share in _BELOW:
        at = upper * (1 - share)
        if excess(at) >= 0:
            return _root(excess, at or before / 2, slope, before)
        before = at
    return 0.0


def _first(excess: Callable[[float], float]) -> tuple[float, float]:
    """Returns about the first root; `inf` if there is none; and the slope."""
    if excess(1.0) <= 0 and excess(0.0) <= 0:
        return 0.0, 1.0
    high, factor = 1.0, _FACTOR
    while excess(high) > 0:
        if high == _LARGEST:
            return math.inf, 1.0
        high, factor = min(high * factor, _LARGEST), factor * factor
    while excess(high / _FACTOR) <= 0 and high > _LEAST:
        high /= _FACTOR
    low = high / _FACTOR
    slope = max(excess(low) - excess(high), 0.0) / (high - low) or 1 / high
    at = _root(excess, low, slope, high, _NEAR_FIRST)
    return at, _slope(excess, at) or slope


def _slope(excess: Callable[[float], float], at: float) -> float:
    """Returns about how fast a function falls."""
    step = _SLOPE * at
    here = excess(at)
    falls = excess(at - step) - here, here - excess(at + step)
    # Where other bounds take over, the smaller one tells.
    some = [fall / step for fall in falls if 0 < fall < math.inf]
    return min(some, default=0.0)


def _root(
    excess: Callable[[float], float],
    at: float,
    slope: float,
    high: float = math.inf,
    nearest: float = _NEAREST,
) -> float:
    """Returns about a root of a falling function, negative at `high`."""
    low, value = 0.0, excess(at)
    for _ in range(_MOST_STEPS):
        low, high = (max(low, at), high) if value > 0 else (low, min(high, at))
        if not value or high <= low * (1 + nearest):
            break
        after = min(max(at + value / slope, at / 2), 2 * at + 1 / slope)
        if abs(after - at) <= nearest * at:
            break
        if after == at / 2 and not low and excess(0.0) <= 0:
            return 0.0
        if not low < after < high:
            after = (low + high) / 2 if high < math.inf else 2 * at
        more = excess(after)
        if (more - value) * (after - at) < 0:
            slope = (value - more) / (after - at)
        else:  # It tells nothing of how far the root is.
            slope /= 2
        at, value = after, more
    return at
