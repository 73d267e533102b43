"""A line of integration: where it is, its points, and what they leave out.

See `_line_integral`.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.compose.composition import (
    Composition,
    log_moment_error,
    moments,
)
from keras_dp.accountants.compose.line.points import (
    EPSILON,
    TERM,
    Complex,
    log_ratios,
    points,
)
from keras_dp.accountants.loss.decay import fall
from keras_dp.accountants.loss.loss_distribution import Layers
from keras_dp.errors import TooSlowError

# Lines that are looked at, in units of the saddle point, and their distances
# from it in standard deviations of the peak.
_SHARES = np.concatenate(
    [
        [0.01, 0.04, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9],
        # To the right `K` may bend upwards at once.
        [1.0, 1.02, 1.05, 1.1, 1.2, 1.4, 1.7],
    ]
)
_WIDTHS = np.array([-4.0, -2.0, -1.0, 1.0, 2.0, 4.0, 7.0])
# How much higher than at the saddle point an integrand may be: digits that the
# sum of its points loses.
_LARGEST_HEIGHT = 2.0
# Each of the two truncation errors, as a share of the tolerated one.
_SHARE = 1 / 16
_LEAST_TOLERANCE = 1e-14
# Rounding of a log moment, in units of float64's.
_MOMENT = 256.0
# Of the secant method; what a logarithm of nothing is counted as, in nats.
_MOST_STEPS = 20
_LOWEST = 30.0
_MOST_POINTS = 10**7
# exp() of it is finite.
_MOST_ERROR = 700.0
# Where the size of a moment is bounded by next to nothing.
_LARGEST_FALL = 0.999


class _Aside(NamedTuple):
    """A line beside the one that is integrated along.

    Attributes:
        tilt: Where it is.
        log_moment: `K` there, at least.
    """

    tilt: float
    log_moment: float

    def log_size(self, epsilon: float) -> float:
        """Returns the log of a bound on the integral of the size, over 2 pi.

        By Cauchy and Schwarz `int dt / |s (s+1)| <= pi / sqrt(x (x+1))`.
        """
        poles = math.log(self.tilt) / 2 + math.log1p(self.tilt) / 2
        return self.log_moment - self.tilt * epsilon - math.log(2) - poles

    def log_error(self, tilt: float, step: float, epsilon: float) -> float:
        """Returns the log of what this line adds to the error of the rule."""
        turns = 2 * math.pi * abs(tilt - self.tilt) / step
        return self.log_size(epsilon) - turns - math.log(-math.expm1(-turns))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Line:
    """The integrand on a line, good for all epsilon near one.

    Attributes:
        composition: What is integrated.
        tilt: `c`.
        log_moment: `K(c)`.
        step: Between the points.
        aside: Two lines, to the left and to the right: the strip for the
            error of the trapezoidal rule.
        points: `e^(K(s) - K(c) - i t K'(c)) / (s (s+1))` on the upper half.
        mean: `K'(c)`.
        log_left_out: Log of a bound on the rest of the line, without
            `e^(-c epsilon)`.
        rounding: Bound on the rounding error of the sum of the points.
        log_moment_error: Bound on the error of `log_moment`.
    """

    composition: Composition
    tilt: float
    log_moment: float
    mean: float
    step: float
    aside: tuple[_Aside, _Aside]
    points: Complex
    log_left_out: float
    rounding: float
    log_moment_error: float

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """Returns a lower and an upper bound on the log of delta."""
        scale = self.log_moment - self.tilt * epsilon
        value = self._value(epsilon)
        log_error = self._log_error(epsilon) - scale
        error = math.exp(min(log_error, 600.0))
        left_out = self.composition.left_out
        cut = math.exp(math.log(left_out) - scale) if left_out else 0.0
        lower, upper = value - error, value + error + cut
        slack = self.log_moment_error
        return (
            scale - slack + math.log(lower) if lower > 0 else -math.inf,
            scale + slack + math.log(upper) if upper > 0 else -math.inf,
        )

    def epsilon(self, log_delta: float, guess: float) -> tuple[float, float]:
        """Returns bounds on the least epsilon for `log_delta`."""
        return (
            self._solved(0, log_delta, guess),
            self._solved(1, log_delta, guess),
        )

    def _value(self, epsilon: float) -> float:
        """Returns the integral over `e^(K(c) - c epsilon)`."""
        turn = self.step * (self.mean - epsilon)
        phases = np.exp(1j * turn * np.arange(self.points.size))
        total = float((self.points * phases).real.sum())
        total -= float(self.points[0].real) / 2
        return total * self.step / math.pi

    def _log_error(self, epsilon: float) -> float:
        tilt = self.tilt
        quadrature = math.log(2) + max(
            each.log_error(tilt, self.step, epsilon) for each in self.aside
        )
        left_out = self.log_left_out - tilt * epsilon
        t = self.step * np.arange(self.points.size)
        turns = TERM * EPSILON * abs(self.mean - epsilon) * t
        rounding = float((np.abs(self.points) * turns).sum()) * self.step
        rounding = math.log(self.rounding + rounding)
        rounding += self.log_moment - tilt * epsilon
        peak = max(quadrature, left_out, rounding)
        return peak + math.log(
            math.exp(quadrature - peak)
            + math.exp(left_out - peak)
            + math.exp(rounding - peak)
        )

    def _solved(self, side: int, log_delta: float, guess: float) -> float:
        """Returns where one of the bounds reaches `log_delta`."""

        def excess(epsilon: float) -> float:
            found = self.log_delta(epsilon)[side]
            return max(found, log_delta - _LOWEST) - log_delta

        # A lower bound is good where it is certain that delta is larger, an
        # upper one where it is certain that it is not.
        found = self._secant(excess, guess)
        step = max(found, 1e-9 / self.tilt) * 1e-13
        while (excess(found) > 0) == bool(side):
            if found == 0 and not side:
                return 0.0
            found = max(0.0, found + step if side else found - step)
            step *= 4
            if step > 1e300:
                raise TooSlowError
        return found

    def _secant(self, excess: Callable[[float], float], guess: float) -> float:
        """Returns a root of `excess`, which falls about like `-c epsilon`."""
        at, value, slope = guess, excess(guess), -self.tilt
        for _ in range(_MOST_STEPS):
            after = min(max(at - value / slope, at / 2), 2 * at + 1)
            if abs(after - at) <= 1e-14 * at:
                break
            more = excess(after)
            if (more - value) * (after - at) < 0:
                slope = (more - value) / (after - at)
            at, value = after, more
        return at


def line_near(
    composition: Composition,
    saddle: float,
    epsilon: float,
    log_delta: float,
    tolerance: float,
) -> Line:
    """Returns a line at a saddle point, or near it.

    Args:
        composition: What is integrated.
        saddle: A tilt.
        epsilon: For which the line is good, and others next to it.
        log_delta: About what delta is, or is to be.
        tolerance: Of delta, relative.

    Raises:
        TooSlowError: It would have too many points.
    """
    tolerance = max(tolerance * _SHARE, _LEAST_TOLERANCE)
    log_tolerance = math.log(tolerance) + log_delta
    place = _place(composition, saddle, epsilon, log_tolerance)
    tilt, step = place.tilt, place.step
    together = [bundle.layers(tilt) for bundle in composition.bundles]
    end, log_left_out = _end(
        composition,
        tilt,
        place.log_moment,
        log_tolerance + tilt * epsilon,
        together,
    )
    if end / step > _MOST_POINTS:
        raise TooSlowError
    size = math.ceil(end / step) + 1
    logs, errors = log_ratios(composition, tilt, step, size, together)
    moment_error = log_moment_error(composition, tilt)
    moment_error += _MOMENT * EPSILON * (1 + abs(place.log_moment))
    t = points(step, size)
    s = tilt + 1j * t
    less = composition.gaussian * t**2 / 2
    values: Complex = np.asarray(np.exp(logs - less) / (s * (1 + s)))
    # Of logarithms, and so relative; beyond it the points are 0.
    errors = np.expm1(np.minimum(errors, _MOST_ERROR))
    errors = errors + EPSILON * (TERM + math.log2(1 + size))
    return Line(
        composition,
        tilt,
        place.log_moment,
        place.mean,
        step,
        place.aside,
        values,
        log_left_out,
        float((np.abs(values) * errors).sum()) * step,
        moment_error,
    )


class _Place(NamedTuple):
    """Where a line is, and how far apart its points are."""

    tilt: float
    log_moment: float
    mean: float
    step: float
    aside: tuple[_Aside, _Aside]


def _place(
    composition: Composition,
    saddle: float,
    epsilon: float,
    log_tolerance: float,
) -> _Place:
    """Returns the line with the fewest points, at a saddle point or near it.

    Where a few large losses bend `K` upwards to the right of it, the strip is
    wider if the line is further to the left.
    """
    spread = math.sqrt(
        float(moments(composition, np.array([saddle])).variance[0])
    )
    near = saddle + _WIDTHS / spread
    tilts = np.concatenate([saddle * _SHARES, near[near > 0.01 * saddle]])
    tilts = np.unique(tilts)
    at = moments(composition, tilts)
    lines = [
        _Aside(tilt, log_moment)
        for tilt, log_moment in zip(
            tilts.tolist(), at.log_moment.tolist(), strict=True
        )
    ]
    needed = np.array([line.log_size(epsilon) for line in lines])
    needed = np.logaddexp(0, needed + math.log(2) - log_tolerance)
    # The step that each line aside allows for each line.
    steps = 2 * np.pi * np.abs(tilts[:, None] - tilts) / needed
    heights = at.log_moment - tilts * epsilon - np.log(tilts * (1 + tilts))
    best, found = -1.0, (0, 0, 0)
    for each in range(1, tilts.size - 1):
        left = int(np.argmax(steps[each, :each]))
        right = each + 1 + int(np.argmax(steps[each, each + 1 :]))
        step = float(min(steps[each, left], steps[each, right]))
        if step > best and heights[each] <= heights.min() + _LARGEST_HEIGHT:
            best, found = step, (each, left, right)
    each, left, right = found
    return _Place(
        lines[each].tilt,
        lines[each].log_moment,
        float(at.mean[each]),
        min(best, 1 / spread),
        (
            _at_least(composition, lines[left]),
            _at_least(composition, lines[right]),
        ),
    )


def _at_least(composition: Composition, line: _Aside) -> _Aside:
    """Returns the line with what its moment may lack added."""
    error = log_moment_error(composition, line.tilt)
    return line._replace(log_moment=line.log_moment + error)


def _end(
    composition: Composition,
    tilt: float,
    log_moment: float,
    log_most: float,
    together: Sequence[Layers],
) -> tuple[float, float]:
    """Returns where the line may end, and a bound on what is left out.

    Beyond `t` the integral is at most `e^K(c) size(t) / (pi t)`, `size` a
    bound on the size of the moments from there on.
    """
    layers = [law.layers(tilt) for law in composition.laws]

    def log_rest(t: float) -> float:
        total = log_moment - composition.gaussian * t * t / 2
        for each, count in zip(layers, composition.counts, strict=True):
            total += count * math.log1p(-min(fall(each, t), _LARGEST_FALL))
        total -= sum(fall(each, t) for each in together)
        return total - math.log(math.pi * t)

    low, high = -30.0, 0.0
    while log_rest(math.exp(high)) > log_most:
        low, high = high, high + 3.0
        if high > 40:
            raise TooSlowError
    while high - low > 0.05:
        middle = (low + high) / 2
        if log_rest(math.exp(middle)) > log_most:
            low = middle
        else:
            high = middle
    end = math.exp(high)
    return end, log_rest(end)
