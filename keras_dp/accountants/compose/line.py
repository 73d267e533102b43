"""A line of integration: where it is, its points, and what they leave out.

See `integral`.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.arrays import EPSILON, EXPONENT, Array, Complex
from keras_dp.accountants.compose.composition import (
    Composition,
    log_moments,
    moments_of_sum,
)
from keras_dp.accountants.compose.line_moments import (
    TERM,
    Paths,
    log_ratios,
    paths,
    points,
)
from keras_dp.accountants.loss import gaussian_profile
from keras_dp.accountants.loss.loss_distribution import (
    Decay,
    LossDistribution,
)
from keras_dp.accountants.roots import last_true
from keras_dp.errors import NumericalLimitError, TooSlowError

# Candidates for the tilt of the line, in units of the best one for a bound by
# moments. A few large losses bend `K` upwards just right of it, and then
# a line far to the left has much fewer points.
_SHARES = np.concatenate(
    [
        np.geomspace(1e-4, 0.1, 11),
        [0.16, 0.24, 0.35, 0.45, 0.56, 0.68, 0.8, 0.9],
        [1.0, 1.05, 1.1, 1.2, 1.4, 1.7, 2.1, 2.7],
    ]
)
# Further candidates, by their distance from the best tilt in standard
# deviations of the peak.
_WIDTHS = np.array([-4.0, -2.0, -1.0, 1.0, 2.0, 4.0, 7.0])
# An integrand may always be this much higher than at its lowest place, in nats:
# the sum of its points loses as many digits.
_LARGEST_HEIGHT = 2.0
# A place that is `e^20` higher must have `e` times fewer points.
_PRICE_OF_HEIGHT = 0.05
# Least width of the strip, in nats, however large the tolerance is.
_LEAST_TURNS = 1e-3
# Rounding of an integrand, relative to its largest value.
_LOG_ROUNDING = math.log(1000 * EPSILON)
# Each of the two truncation errors, as a share of the tolerated error.
_SHARE = 1 / 16
_LEAST_TOLERANCE = 1e-14
# Rounding of a log moment, in units of `EPSILON`.
_MOMENT = 256.0
# An upper bound on how far `gaussian_profile` rounds up.
_PROFILE_ERROR = 1e-11
# With larger steps the end of a line might be beyond float64.
_LARGEST_STEP = 1e300
# The largest number of points of a line.
MOST_POINTS = 1 << 23
# Products of nodes and points that take about a second.
MOST_WORK = 6e8


class _Aside(NamedTuple):
    """A line beside the one of integration, and `K` there, at least."""

    tilt: float
    log_moment: float

    def with_noise(self, gaussian: float) -> "_Aside":
        """Returns the line for more Gaussian noise, of `mu^2 = gaussian`."""
        more = gaussian * self.tilt * (1 + self.tilt) / 2
        return self._replace(log_moment=self.log_moment + more)

    def without(self, gaussian: float) -> "_Aside":
        """Returns the line for the difference to a Gaussian release."""
        less = gaussian * self.tilt * (1 + self.tilt) / 2
        moment = float(np.logaddexp(self.log_moment, less))
        return self._replace(log_moment=moment)

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


class LinePlace(NamedTuple):
    """Where a line is, how far apart its points are, and how far it goes.

    Attributes:
        tilt: `c`.
        log_moment: `K(c)`.
        mean: `K'(c)`.
        gaussian: `mu^2` of the Gaussian rounds.
        step: Between the points.
        aside: Two lines, to the left and to the right: the strip for the
            error of the trapezoidal rule.
        log_tolerance: Log of the tolerated error of delta.
        log_moment_error: Bound on the error of `log_moment`.
        paths: The losses on their paths.
        decays: How fast the moments of each loss fall.
    """

    tilt: float
    log_moment: float
    mean: float
    gaussian: float
    step: float
    aside: tuple[_Aside, _Aside]
    log_tolerance: float
    log_moment_error: float
    paths: Paths
    decays: tuple[Decay, ...]

    def with_noise(self, gaussian: float) -> "LinePlace":
        """Returns the place for one more release, of `mu^2 = gaussian`.

        It adds `g s (s+1) / 2` to `K`, and likewise to its derivative.
        """
        total = self.gaussian + gaussian
        more = total - self.gaussian
        left, right = self.aside
        return self._replace(
            log_moment=self.log_moment + more * self.tilt * (1 + self.tilt) / 2,
            mean=self.mean + more * (self.tilt + 0.5),
            gaussian=total,
            aside=(left.with_noise(more), right.with_noise(more)),
        )

    def without(self, gaussian: float) -> "LinePlace":
        """Returns the place for the difference to a Gaussian release."""
        left, right = self.aside
        return self._replace(
            aside=(left.without(gaussian), right.without(gaussian))
        )

    def end(self, epsilon: float) -> tuple[float, float]:
        """Returns where the line may end, and a bound on what is left out.

        Beyond `t` the integral is at most `e^K(c) size(t) / (pi t)`, `size` a
        bound on the size of the moments from there on.
        """
        log_most = self.log_tolerance + self.tilt * epsilon

        def log_rest(t: float) -> float:
            total = self.log_moment - self.gaussian * t * t / 2
            total += sum(
                count * decay.log_size(t)
                for decay, count in zip(
                    self.decays, self.paths.counts, strict=True
                )
            )
            return total - math.log(math.pi * t)

        low, high = -30.0, 0.0
        while log_rest(math.exp(high)) > log_most:
            low, high = high, high + 3.0
            if high > 90:
                raise TooSlowError
        end = math.exp(
            last_true(
                lambda log_t: log_rest(math.exp(log_t)) <= log_most,
                high,
                low,
                nearest=0.05,
            )
        )
        return end, log_rest(end)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Line:
    """The integrand on a line, good for all epsilon near one.

    Attributes:
        place: Where it is; of the difference, if one was subtracted.
        points: `e^(K(s) - K(c) - i t K'(c)) / (s (s+1))` on the upper half,
            row by row in a square, with zeros at the end.
        subtracted: `mu^2` of a Gaussian release whose integrand was subtracted
            from the points; 0 if none was.
        log_left_out: Log of a bound on the rest of the line, without
            `e^(-c epsilon)`.
        spread: Integral of the size of the points times `|t|`.
        rounding: Bound on the rounding error of the sum of the points.
    """

    place: LinePlace
    points: Complex
    subtracted: float
    log_left_out: float
    spread: float
    rounding: float

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """Returns a lower and an upper bound on the log of delta.

        They are infinite where the line knows nothing: its error has no
        bound, or delta would not be positive, which it always is.
        """
        place = self.place
        scale = place.log_moment - place.tilt * epsilon
        log_error = self._log_error(epsilon) - scale
        if not log_error <= EXPONENT:
            return -math.inf, math.inf
        value, error = self._value(epsilon), math.exp(log_error)
        if self.subtracted:
            subtracted = gaussian_profile.log_delta(
                math.sqrt(self.subtracted), epsilon
            )
            less = math.exp(min(float(subtracted) - scale, EXPONENT))
            off = _PROFILE_ERROR * (1 - float(subtracted))
            value, error = value + less, error + off * less
        if not value > -error:
            return -math.inf, math.inf
        lower, upper = value - error, value + error
        slack = place.log_moment_error
        slack += _MOMENT * EPSILON * (1 + abs(place.log_moment))
        return (
            scale - slack + math.log(lower) if lower > 0 else -math.inf,
            scale + slack + math.log(upper) if upper > 0 else math.inf,
        )

    def _value(self, epsilon: float) -> float:
        """Returns the integral over `e^(K(c) - c epsilon)`."""
        block = self.points.shape[1]
        step, mean = self.place.step, self.place.mean
        turn = 1j * step * (mean - epsilon)
        fine = np.exp(turn * np.arange(block))
        coarse = np.exp(turn * block * np.arange(self.points.shape[0]))
        total = float((coarse @ (self.points @ fine)).real)
        total -= float(self.points[0, 0].real) / 2
        return total * step / math.pi

    def _log_error(self, epsilon: float) -> float:
        place, tilt = self.place, self.place.tilt
        quadrature = math.log(2) + max(
            each.log_error(tilt, place.step, epsilon) for each in place.aside
        )
        left_out = self.log_left_out - tilt * epsilon
        turned = TERM * EPSILON * abs(place.mean - epsilon) * self.spread
        rounding = self.rounding + turned
        rounding = math.log(rounding) + place.log_moment - tilt * epsilon
        peak = max(quadrature, left_out, rounding)
        if peak == math.inf:
            return math.inf
        return peak + math.log(
            math.exp(quadrature - peak)
            + math.exp(left_out - peak)
            + math.exp(rounding - peak)
        )


def lines_at(places: Sequence[LinePlace], epsilon: float) -> list[Line]:
    """Returns lines that are good next to an epsilon.

    The places are those of one line, with more and more Gaussian noise.
    """
    place = places[0]
    ends = [each.end(epsilon) for each in places]
    size = math.ceil(ends[0][0] / place.step) + 1
    if size > MOST_POINTS or size * place.paths.size > 2 * MOST_WORK:
        raise TooSlowError
    logs, errors = log_ratios(place.paths, place.step, size)
    # From errors of logarithms to relative ones. Where they are huge, the
    # points are 0.
    errors = np.expm1(np.minimum(errors, EXPONENT / 2))
    return [
        _line(each, logs, errors, *end)
        for each, end in zip(places, ends, strict=True)
    ]


def _line(
    place: LinePlace,
    logs: Complex,
    errors: Array,
    end: float,
    log_left_out: float,
) -> Line:
    tilt, step = place.tilt, place.step
    size = min(math.ceil(end / step) + 1, logs.size)
    t = points(step, size)
    s = tilt + 1j * t
    logs = logs[:size] - place.gaussian * t**2 / 2
    values: Complex = np.exp(logs)
    sizes = np.abs(values)
    rounding = EPSILON * (TERM + math.log2(1 + size))
    noise = sizes * (errors[:size] + rounding)
    # Where `K` is next to 0, so is the difference to a release of next to no
    # loss, which ends where the line does.
    gaussian = 2 * max(place.log_moment - log_left_out, 1.0) / end**2
    less = gaussian * s * (1 + s) / 2 - place.log_moment - 1j * place.mean * t
    poles = np.abs(s * (1 + s))
    apart, closer = _difference(logs, less, errors[:size], rounding)
    if (closer / poles).sum() < (noise / poles).sum():
        values, noise = apart, closer
        place = place.without(gaussian)
        log_less = gaussian * (tilt * (1 + tilt) - end**2) / 2
        log_less -= math.log(math.pi * end)
        log_left_out = float(np.logaddexp(log_left_out, log_less))
    else:
        gaussian = 0.0
    values = values / (s * (1 + s))
    return Line(
        place,
        _square(values),
        gaussian,
        log_left_out,
        float(np.abs(values) @ t) * step,
        float((noise / poles).sum()) * step,
    )


def _difference(
    logs: Complex, less: Complex, errors: Array, rounding: float
) -> tuple[Complex, Array]:
    """Returns `e^logs - e^less`, and its errors; neither where it overflows.

    The first exponential has relative errors, and a sum of the results has one
    from rounding.
    """
    with np.errstate(all="ignore"):
        change, other = logs - less, np.exp(less)
        near = np.abs(change.real) < 1
        both: Complex = np.where(
            near,
            other * np.expm1(np.where(near, change, 0.0)),
            np.exp(logs) - other,
        )
        noise = errors * np.exp(logs.real) + rounding * np.abs(both)
        sizes = np.abs(logs) + np.abs(less)
        return both, noise + TERM * EPSILON * sizes * np.abs(other)


def _square(values: Complex) -> Complex:
    block = math.isqrt(values.size - 1) + 1
    padded = np.zeros(block * block, dtype=np.complex128)
    padded[: values.size] = values
    return padded.reshape(block, block)


def place_near(
    composition: Composition,
    best_tilt: float,
    epsilon: float,
    log_delta: float,
    tolerance: float,
) -> LinePlace:
    """Returns the place of a line with few points, good next to an epsilon.

    The tolerance is a share of delta, whose log is about `log_delta`, or is to
    be.
    """
    tolerance = max(tolerance * _SHARE, _LEAST_TOLERANCE)
    log_tolerance = math.log(tolerance) + log_delta
    tilts, logs, errors = _candidates(composition, best_tilt)
    lines = [
        _Aside(tilt, log_moment)
        for tilt, log_moment in zip(tilts.tolist(), logs.tolist(), strict=True)
    ]
    needed = np.array([line.log_size(epsilon) for line in lines])
    needed = np.logaddexp(0, needed + math.log(2) - log_tolerance)
    needed = np.maximum(needed, _LEAST_TURNS)
    # The step that each line aside allows for each line.
    steps = 2 * np.pi * np.abs(tilts[:, None] - tilts) / needed
    heights = logs - tilts * epsilon - np.log(tilts * (1 + tilts))
    lowest = heights.min()
    allowed = max(lowest + _LARGEST_HEIGHT, log_tolerance - _LOG_ROUNDING)
    best, found = -math.inf, (0, 0, 0)
    for each in (np.flatnonzero(heights[1:-1] <= allowed) + 1).tolist():
        left = int(np.argmax(steps[each, :each]))
        right = each + 1 + int(np.argmax(steps[each, each + 1 :]))
        log_step = math.log(min(steps[each, left], steps[each, right]))
        value = log_step - _PRICE_OF_HEIGHT * (heights[each] - lowest)
        if value > best:
            best, found = value, (each, left, right)
    each, left, right = found
    tilt = lines[each].tilt
    step = float(min(steps[each, left], steps[each, right]))
    at = moments_of_sum(composition, tilt)
    step = min(step, 1 / math.sqrt(at.variance))
    if not 0 < step < _LARGEST_STEP:
        raise NumericalLimitError("`step` must be within float64.")
    return LinePlace(
        tilt,
        lines[each].log_moment,
        at.mean,
        composition.gaussian,
        step,
        (
            _at_least(lines[left], errors[left]),
            _at_least(lines[right], errors[right]),
        ),
        log_tolerance,
        float(errors[each]),
        # Other lines of the same tilt have the same paths.
        paths(composition, tilt, _power_above(MOST_POINTS * step)),
        tuple(_decay(loss, tilt) for loss in composition.losses),
    )


@functools.lru_cache(maxsize=64)
def _decay(loss: LossDistribution, tilt: float) -> Decay:
    return loss.decay(tilt)


def _power_above(size: float) -> float:
    return float(2.0 ** math.ceil(math.log2(size)))


def _candidates(
    composition: Composition, best_tilt: float
) -> tuple[Array, Array, Array]:
    """Returns tilts in rising order, `K` there, and bounds on its errors."""
    variance = moments_of_sum(composition, best_tilt).variance
    # Other numbers of the same rounds have the same candidates.
    near = best_tilt + _WIDTHS / _power_above(math.sqrt(variance))
    near = near[(near > 0) & (near < best_tilt * _SHARES[-1])]
    tilts = np.unique(np.concatenate([best_tilt * _SHARES, near]))
    while tilts.size > 2:
        try:
            logs, errors = log_moments(composition, tilts)
        except TooSlowError:  # Not at such a tilt.
            tilts = tilts[tilts < tilts[-1] / 2]
            continue
        kept = np.isfinite(logs) & np.isfinite(errors)
        if kept.sum() > 2:
            return tilts[kept], logs[kept], errors[kept]
        break
    raise NumericalLimitError("`tilt` must have moments that are finite.")


def _at_least(line: _Aside, error: float) -> _Aside:
    return line._replace(log_moment=line.log_moment + float(error))
