"""Delta of composed rounds, by an integral along a vertical line.

With `K(s)` the sum of the logs of the moment generating functions of the
rounds' privacy losses, and any `c > 0`,

    delta(e) = 1/(2 pi i) int_(c-i inf)^(c+i inf) e^(K(s) - s e) / (s (s+1)) ds.

Next to the saddle point nothing cancels: precision is relative, `1e-30` is as
easy as `1e-5`. The errors of the trapezoidal rule, of the end of the line, of
the quadrature of `K` and of rounding are bounded and added, or subtracted.
Where the integrand falls too slowly, `smoothing` ends the line.

Source: Zhu, Dong, Wang (2022), arXiv:2106.08567v4, for the characteristic
function of the loss. The line, its saddle point and the bounds are ours.
"""

import math

from keras_dp.accountants.compose import saddle
from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.line.line import (
    Place,
    lines_at,
    place_near,
)
from keras_dp.accountants.compose.line.smoothing import (
    Profile,
    smoothed,
    smoothed_by,
    width_of,
)
from keras_dp.errors import TooSlowError

# Relative width of the first line, which only finds the place of the second.
_FIRST_WIDTH = 1e-2
_MOST_LINES = 9
# A line this narrow can take a second; the largest number of such lines.
_LONG, _MOST_LONG = 1e-4, 2
# Tolerated error of delta, as a share of what the width allows.
_SHARE = 0.1
# Another line is computed only if the last one at least halved the width.
_WORTHWHILE = 0.5
# Largest uncertainty of log delta at the place of the last line.
_NEAR = 0.3
# Relative width of the next line if this one is not narrow enough.
_NARROWER = 1 / 30
# First guess of log delta: this far below the bound by moments.
_BELOW = 3.0


def epsilon_bounds(
    composition: Composition,
    log_delta: float,
    relative_width: float,
    certain: float = 0.0,
) -> tuple[float, float]:
    """Returns bounds on the least epsilon for `log_delta`.

    Args:
        composition: The rounds to be integrated.
        log_delta: < 0.
        relative_width: How far apart they may be, as a share of the upper one.
        certain: Below it, it does not matter where epsilon is.

    Raises:
        TooSlowError: A moment has no quadrature.
        NumericalLimitError: A moment is not finite.
    """
    tilt, upper = saddle.largest_epsilon(composition, log_delta)
    lower, upper = 0.0, min(upper, composition.largest)
    slope, epsilon, width = tilt, upper, max(_FIRST_WIDTH, relative_width)
    longest = 0
    for _ in range(_MOST_LINES):
        try:
            profile = _profile(
                composition, tilt, slope, epsilon, log_delta, width
            )
        except TooSlowError:
            if not lower:
                raise
            break  # The bounds of a shorter line are bounds.
        found = profile.epsilon(log_delta, epsilon)
        lower, upper = max(lower, found[0]), min(upper, found[1])
        if upper - lower <= relative_width * upper or upper <= certain:
            break
        moved = (lower + upper) / 2 if lower else upper
        is_near = slope * abs(moved - epsilon) < _NEAR
        longest += width <= _LONG
        if (longest and is_near) or longest == _MOST_LONG:
            break  # Rounding, or points, are what is left.
        epsilon = moved
        slope = profile.slope(epsilon)
        tilt = saddle.largest_log_delta(composition, epsilon)[0]
        # A long line only where the result will be.
        if lower and slope * (upper - lower) < _NEAR:
            width = relative_width
        elif is_near:
            width = max(width * _NARROWER, relative_width)
    return lower, upper


def narrower(
    composition: Composition,
    relative_width: float,
    known: tuple[float, float],
    *,
    log_delta: float | None = None,
    epsilon: float | None = None,
) -> tuple[float, float]:
    """Returns bounds that a line brings closer, where one is short enough.

    Args:
        composition: The rounds to be integrated.
        relative_width: How far apart they may be, as above.
        known: Bounds on epsilon or on log delta, both above the least number.
        log_delta: The log of the delta whose epsilon is looked for, or
        epsilon: the epsilon > 0 whose log delta is.

    Raises:
        TooSlowError: A moment has no quadrature.
        NumericalLimitError: A moment is not finite.
    """
    lower, upper = known
    at = (lower + upper) / 2 if epsilon is None else epsilon
    tilt, _ = saddle.largest_log_delta(composition, at)
    # Epsilon is of the size of the losses.
    slope = max(tilt, 1 / at)
    # Widths of epsilon from widths of log delta.
    scale = 1.0 if epsilon is None else 1 / slope
    near = lower if log_delta is None else log_delta
    tolerance = _SHARE * relative_width
    place = place_near(composition, tilt, at, near, tolerance)
    wanted = relative_width * (1.0 if epsilon is None else scale / at)
    width = width_of(place, composition, at, slope, wanted)
    if smoothed_by(width, slope) > _WORTHWHILE * (upper - lower) * scale:
        return known
    profile = _profile_at(place, composition, at, width)
    if epsilon is None:
        found = profile.epsilon(near, at)
    else:
        composition.lines[:] = [profile]
        found = profile.log_delta(at)
    return max(lower, found[0]), min(upper, found[1])


def log_delta_bounds(
    composition: Composition,
    epsilon: float,
    relative_width: float,
    certain: float = -math.inf,
) -> tuple[float, float]:
    """Returns bounds on the log of the least delta for `epsilon`.

    Args:
        composition: The rounds to be integrated.
        epsilon: >= 0.
        relative_width: How far apart they may be.
        certain: Below it, it does not matter where log delta is.

    Raises:
        TooSlowError: A moment has no quadrature.
        NumericalLimitError: A moment is not finite.
    """
    if epsilon >= composition.largest:
        return -math.inf, -math.inf
    tilt, upper = saddle.largest_log_delta(composition, epsilon)
    lower, log_delta, slope = -math.inf, upper - _BELOW, tilt
    # Widths are of log delta here, and of epsilon in `_profile`.
    for _ in range(_MOST_LINES):
        before = upper - lower
        wanted = relative_width / max(slope * epsilon, 1e-9)
        at = composition, tilt, slope, epsilon, log_delta
        try:
            profile = _profile(*at, wanted)
        except TooSlowError:
            if before < math.inf:
                break
            profile = _profile(*at, max(wanted, _FIRST_WIDTH))
        composition.lines[:] = [profile]
        found = profile.log_delta(epsilon)
        lower, upper = max(lower, found[0]), min(upper, found[1])
        if upper - lower <= relative_width or upper <= certain:
            break
        is_known = lower > -math.inf
        if is_known and upper - lower > _WORTHWHILE * before:
            break
        slope = profile.slope(epsilon)
        log_delta = lower if is_known else log_delta - 10 * _BELOW
    return lower, upper


def known_log_delta(
    composition: Composition, epsilon: float, relative_width: float
) -> tuple[float, float] | None:
    """Returns the bounds of the line that is there already, if they are near.

    Args:
        composition: The rounds.
        epsilon: >= 0.
        relative_width: How far apart the bounds may be.
    """
    for profile in composition.lines:
        lower, upper = profile.log_delta(epsilon)
        # Also false if a bound is not a number.
        if 0 <= upper - lower <= relative_width:
            return lower, upper
    return None


def _profile(
    composition: Composition,
    tilt: float,
    slope: float,
    epsilon: float,
    log_delta: float,
    width: float,
) -> Profile:
    """Returns bounds on delta next to `epsilon`.

    Args:
        composition: The rounds to be integrated.
        tilt: The tilt of the best bound by moments.
        slope: About how fast log delta falls with epsilon.
        epsilon: Where the profile is to be good.
        log_delta: About what delta is there.
        width: Relative width of epsilon to aim at.
    """
    tolerance = _SHARE * width * min(slope * epsilon, 1.0)
    place = place_near(composition, tilt, epsilon, log_delta, tolerance)
    smoothing = width_of(place, composition, epsilon, slope, width)
    return _profile_at(place, composition, epsilon, smoothing)


def _profile_at(
    place: Place, composition: Composition, epsilon: float, smoothing: float
) -> Profile:
    """Returns bounds on delta from a line at a place, smoothed or not."""
    if not smoothing:
        (line,) = lines_at(place, [composition], epsilon)
        return Profile(line, None, 0.0)
    noisier, noisiest, share = smoothed(composition, smoothing)
    line, wider = lines_at(place, [noisier, noisiest], epsilon)
    return Profile(line, wider, share)
