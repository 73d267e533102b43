"""Delta of composed rounds, by an integral along a vertical line.

With `K(s)` the sum of the logs of the moment generating functions of the
rounds' privacy losses, and any `c > 0`,

    delta(e) = 1/(2 pi i) int_(c-i inf)^(c+i inf) e^(K(s) - s e) / (s (s+1)) ds.

Through the saddle point nothing cancels: precision is relative, `1e-30` is as
easy as `1e-5`. What the trapezoidal rule, the end of the line, the quadrature
of `K` and rounding can change is bounded and added, or subtracted.

Source: Zhu, Dong, Wang (2022), arXiv:2106.08567v4, for the characteristic
function of the loss. The line, its saddle point and the bounds are ours.
"""

import math

import numpy as np

from keras_dp.accountants.compose.composition import (
    Composition,
    log_moment_error,
    moments,
    without_large_losses,
)
from keras_dp.accountants.compose.line.line import line_near
from keras_dp.errors import TooSlowError

# The tilt stays away from the pole at 0, in widths of the peak.
_LEAST_TILT = 0.5
# Tilts that are looked at together, in units of the best one so far.
_OCTAVES = 2.0 ** np.linspace(-2, 2, 9)
_LEAST_OF_TILTS = 2.0**-40
_TILTS = 2.0 ** np.arange(-4.0, 10.0)
# The first line only finds where the second one has to be.
_FIRST_TOLERANCE = 1e-3
_MOST_LINES = 8
# Of epsilon, in units of the inverse tilt.
_NEXT_TO_ZERO = 1e-6
# What moments are rounded up by, a thousand times their error.
_MOMENT_ERROR = 1e-9
# A bound by moments that falls to this share without large losses was kept
# back by them.
_KEPT_BACK = 0.9


def epsilon_bounds(
    composition: Composition, log_delta: float, relative_width: float
) -> tuple[float, float]:
    """Returns bounds on the least epsilon for `log_delta`.

    Raises:
        TooSlowError: The line would have too many points.
    """
    tilt, epsilon = _chernoff(composition, log_delta)
    tolerance = _FIRST_TOLERANCE
    lower, upper = 0.0, math.inf
    for _ in range(_MOST_LINES):
        tilt = _saddle_point(composition, epsilon, tilt)
        line = line_near(composition, tilt, epsilon, log_delta, tolerance)
        found = line.epsilon(log_delta, epsilon)
        before = upper - lower
        lower, upper = max(lower, found[0]), min(upper, found[1])
        if upper - lower <= relative_width * upper:
            break
        if lower > 0 and upper - lower > before / 2:
            break  # Rounding is what is left.
        epsilon = found[1] if found[0] == 0 else sum(found) / 2
        if lower == 0:
            continue  # Still too far to the right for more than that.
        if tolerance < _FIRST_TOLERANCE:
            tolerance /= _MOST_LINES
        else:
            tolerance = relative_width * max(min(tilt * epsilon, 1.0), 1e-4)
    return lower, upper


def log_delta_bounds(
    composition: Composition, epsilon: float, relative_width: float
) -> tuple[float, float]:
    """Returns bounds on the log of the least delta for `epsilon`.

    Raises:
        TooSlowError: The line would have too many points.
    """
    tilt = _saddle_point(composition, epsilon, 1.0)
    log_delta = log_delta_about(composition, epsilon)
    lower, upper = -math.inf, 0.0
    for _ in range(_MOST_LINES):
        line = line_near(composition, tilt, epsilon, log_delta, relative_width)
        found = line.log_delta(epsilon)
        lower, upper = max(lower, found[0]), min(upper, found[1])
        if upper - lower <= relative_width:
            break
        log_delta = min(log_delta, upper if lower == -math.inf else lower) - 1
    return lower, upper


def log_delta_about(composition: Composition, epsilon: float) -> float:
    """Returns the saddle-point estimate of the log of delta."""
    tilt = _saddle_point(composition, epsilon, 1.0)
    at = moments(composition, np.array([tilt]))
    width = float(at.variance[0]) + 1 / tilt**2
    poles = math.log(tilt * (1 + tilt)) + math.log(2 * math.pi * width) / 2
    return float(at.log_moment[0]) - tilt * epsilon - poles


def is_kept_back(composition: Composition, log_delta: float) -> bool:
    """Returns whether large losses keep the line from a saddle point."""
    shorter = without_large_losses(composition, log_delta)
    if not shorter.left_out:
        return False
    _, whole = _chernoff(composition, log_delta)
    return _chernoff(shorter, log_delta)[1] < _KEPT_BACK * whole


def largest_epsilon(composition: Composition, log_delta: float) -> float:
    """Returns a first upper bound on epsilon, by moments alone.

    Raises:
        TooSlowError: A moment has no quadrature.
    """
    tilt, epsilon = _chernoff(composition, log_delta)
    error = log_moment_error(composition, tilt)
    return epsilon * (1 + _MOMENT_ERROR) + error / tilt


def largest_log_delta(composition: Composition, epsilon: float) -> float:
    """Returns a first upper bound on the log of delta, by moments alone."""
    tilts = _TILTS
    while tilts.size:  # Any of them gives a bound.
        try:
            logs = moments(composition, tilts).log_moment
        except TooSlowError:
            tilts = tilts[: tilts.size // 2]
            continue
        poles = (1 + tilts) * np.log1p(tilts) - tilts * np.log(tilts)
        errors = _MOMENT_ERROR * (logs + tilts * epsilon + poles)
        found = logs - tilts * epsilon - poles + errors
        best = int(np.nanargmin(found))
        error = log_moment_error(composition, float(tilts[best]))
        return min(0.0, float(found[best]) + error)
    return 0.0


def _chernoff(
    composition: Composition, log_delta: float
) -> tuple[float, float]:
    """Returns the tilt of the best bound by moments, and that bound."""
    one = moments(composition, np.array([1.0]))
    tilt = math.sqrt(2 * (1 - log_delta) / float(one.variance[0]))
    highest = 1 / _LEAST_OF_TILTS
    while True:
        tilts = tilt * _OCTAVES
        try:
            logs = moments(composition, tilts).log_moment
        except TooSlowError:  # Not at such a tilt.
            highest = tilt
            tilt /= _OCTAVES[-1] ** 2
            if tilt < _LEAST_OF_TILTS:
                raise
            continue
        poles = (1 + tilts) * np.log1p(tilts) - tilts * np.log(tilts)
        bounds = (logs - log_delta - poles) / tilts
        best = int(np.argmin(bounds))
        tilt = float(tilts[best])
        is_inside = 0 < best < tilts.size - 1
        if is_inside or not _LEAST_OF_TILTS < tilt < highest / _OCTAVES[-1]:
            return tilt, max(0.0, float(bounds[best]))


def _saddle_point(
    composition: Composition, epsilon: float, start: float
) -> float:
    """Returns about where `K(c) - c epsilon - log(c (c+1))` is least.

    Not closer to the pole at 0 than a share of the width of the peak.
    """
    tilts = start * _OCTAVES
    while True:
        at = moments(composition, tilts)
        slope = at.mean - epsilon - 1 / tilts - 1 / (1 + tilts)
        rising = int(np.searchsorted(slope, 0.0))
        if rising == 0 and tilts[0] > _LEAST_OF_TILTS:
            tilts = tilts / 8
        elif rising == tilts.size and tilts[-1] < 1 / _LEAST_OF_TILTS:
            tilts = tilts * 8
        elif tilts[-1] > 2 * tilts[0] and 0 < rising < tilts.size:
            tilts = np.geomspace(tilts[rising - 1], tilts[rising], 6)
        else:
            break
    tilt = math.exp(np.interp(0.0, slope, np.log(tilts)))
    spread = float(np.interp(tilt, tilts, at.variance))
    if not spread:
        raise TooSlowError
    return max(tilt, _LEAST_TILT / math.sqrt(spread))
