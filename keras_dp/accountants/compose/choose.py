"""Which method bounds epsilon and delta of a composition."""

import math
from collections.abc import Callable
from typing import NamedTuple

from keras_dp.accountants.compose import saddle, single_round
from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.grid import small_losses
from keras_dp.accountants.compose.line import integral
from keras_dp.accountants.loss import gaussian_profile
from keras_dp.accountants.loss.fixed_size import FixedSizeLoss
from keras_dp.accountants.loss.mixture import MixtureLoss
from keras_dp.errors import NumericalLimitError, TooSlowError

# An upper bound on how far `gaussian_profile` rounds up.
_PROFILE_ERROR = 1e-11
# The largest share by which normalization rounds noise multipliers down.
_ROUNDED_DOWN = 1.1e-11
# Methods raise these for rounds that they cannot handle, and nothing else.
_OUT_OF_REACH = (TooSlowError, NumericalLimitError)

CLOSED_FORM = "closed form"
LINE = "line integral"
MOMENTS = "bound by moments"
GRID = "convolution of likelihood ratios"
# A line is long where losses are so small: their stddev, and its product with
# the tilt of the line.
_TINY, _SHORT_LINE = 1e-5, 0.01
# Bounds of a line are this far apart, as a share, where a grid has better ones.
_WIDE = 0.02


class Found(NamedTuple):
    """Bounds on epsilon or on log delta, and which method they are of.

    Attributes:
        lower: At most the number.
        upper: At least the number.
        method: Which method gave the upper one.
    """

    lower: float
    upper: float
    method: str


def epsilons(
    composition: Composition,
    log_delta: float,
    relative_width: float,
    certain: float,
) -> Found:
    """Returns bounds on the least epsilon for `log_delta`.

    Args:
        composition: One adjacency direction of all rounds.
        log_delta: < 0.
        relative_width: How far apart they may be, as a share of the upper one.
        certain: Below it, it does not matter where epsilon is.
    """
    if not composition.losses:
        mu = math.sqrt(composition.gaussian)
        upper = gaussian_profile.least_epsilon(mu * (1 + 1e-15), log_delta)
        lower = gaussian_profile.least_epsilon(
            mu * (1 - _ROUNDED_DOWN), log_delta + _PROFILE_ERROR
        )
        lowered = float(lower) * (1 - _PROFILE_ERROR)
        return Found(lowered, float(upper), CLOSED_FORM)
    single = _single(composition)
    if single is not None:
        found = single_round.epsilon_bounds(single, log_delta)
        return Found(*found, CLOSED_FORM)
    on_grid = _on_grid(
        composition,
        (0.0, certain),
        lambda: saddle.largest_epsilon(composition, log_delta)[0],
        lambda: small_losses.epsilon_bounds(composition, log_delta),
        lambda known: integral.narrower(
            composition, relative_width, known, log_delta=log_delta
        ),
    )
    if on_grid is not None:
        return on_grid
    return _from_moments(
        composition,
        lambda whole: min(
            saddle.largest_epsilon(whole, log_delta)[1],
            saddle.variance_epsilon(whole, log_delta),
        ),
        lambda whole: integral.epsilon_bounds(
            whole, log_delta, relative_width, certain
        ),
        lambda whole: small_losses.epsilon_bounds(whole, log_delta),
        lambda lower, upper, share: (
            upper <= certain or upper - lower <= share * upper
        ),
        (0.0, relative_width),
    )


def log_deltas(
    composition: Composition,
    epsilon: float,
    relative_width: float,
    certain: float,
) -> Found:
    """Returns bounds on the log of the least delta for `epsilon`.

    Args:
        composition: One adjacency direction of all rounds.
        epsilon: >= 0.
        relative_width: How far apart they may be.
        certain: Below it, it does not matter where log delta is.
    """
    if not composition.losses:
        mu = math.sqrt(composition.gaussian)
        upper = gaussian_profile.log_delta(mu * (1 + 1e-15), epsilon)
        lower = gaussian_profile.log_delta(mu * (1 - _ROUNDED_DOWN), epsilon)
        error = _PROFILE_ERROR * (1 - float(upper))
        return Found(float(lower) - error, float(upper), CLOSED_FORM)
    single = _single(composition)
    if single is not None:
        found = single_round.log_delta_bounds(single, epsilon)
        return Found(*found, CLOSED_FORM)
    known = integral.known_log_delta(composition, epsilon, relative_width)
    if known is not None:
        return Found(*known, LINE)
    on_grid = _on_grid(
        composition,
        (-math.inf, certain if epsilon else math.inf),
        lambda: saddle.largest_log_delta(composition, epsilon)[0],
        lambda: small_losses.log_delta_bounds(composition, epsilon),
        lambda known: integral.narrower(
            composition, relative_width, known, epsilon=epsilon
        ),
    )
    if on_grid is not None:
        return on_grid
    return _from_moments(
        composition,
        lambda whole: min(
            saddle.largest_log_delta(whole, epsilon)[1],
            saddle.variance_log_delta(whole, epsilon),
        ),
        lambda whole: integral.log_delta_bounds(
            whole, epsilon, relative_width, certain
        ),
        lambda whole: small_losses.log_delta_bounds(whole, epsilon),
        lambda lower, upper, width: upper <= certain or upper - lower <= width,
        (-math.inf, relative_width),
    )


def _single(composition: Composition) -> MixtureLoss | None:
    """Returns the loss of a single sampled round with a closed form, if any."""
    if composition.gaussian or composition.counts.sum() != 1:
        return None
    loss = composition.losses[0]
    if isinstance(loss, MixtureLoss) and len(loss.probabilities) == 2:
        return loss
    return None


def _on_grid(
    composition: Composition,
    ends: tuple[float, float],
    tilt: Callable[[], float],
    bounds: Callable[[], tuple[float, float]],
    narrower: Callable[[tuple[float, float]], tuple[float, float]],
) -> Found | None:
    """Returns bounds for losses next to 0, `None` where a line does as well.

    Args:
        composition: The rounds.
        ends: The least number there is, and one below which none matters.
        tilt: The tilt of the best bound by moments.
        bounds: Bounds from a grid.
        narrower: Brings them closer, where that takes little.
    """
    least, certain = ends
    # The line of samples of fixed size is no longer where losses are small.
    if not small_losses.supports(composition) or any(
        isinstance(each, FixedSizeLoss) for each in composition.losses
    ):
        return None
    try:
        spread = saddle.stddev(composition)
        if spread > _TINY and tilt() * spread > _SHORT_LINE:
            return None
        lower, upper = bounds()
    except _OUT_OF_REACH:
        return None
    if not lower > least:
        return None
    try:
        found = (lower, upper) if upper <= certain else narrower((lower, upper))
    except _OUT_OF_REACH:
        found = lower, upper
    if lower <= found[0] <= found[1] < upper:
        return Found(*found, LINE)
    return Found(lower, upper, GRID)


def _from_moments(
    composition: Composition,
    largest: Callable[[Composition], float],
    bounds: Callable[[Composition], tuple[float, float]],
    on_grid: Callable[[Composition], tuple[float, float]],
    is_narrow: Callable[[float, float, float], bool],
    ends: tuple[float, float],
) -> Found:
    """Returns the bounds of the line integral, or at least one by moments.

    Args:
        composition: The rounds.
        largest: A first upper bound, by moments alone.
        bounds: A lower and an upper bound, from the line.
        on_grid: The same from a grid.
        is_narrow: Whether a lower and an upper bound are near enough; a width.
        ends: The least number there is, and that width.
    """
    least, width = ends
    try:
        upper = largest(composition)
    except _OUT_OF_REACH:
        return Found(least, math.inf, MOMENTS)
    found = Found(least, upper, MOMENTS)
    ways = [(bounds, width, LINE)]
    if small_losses.supports(composition):
        ways.append((on_grid, _WIDE, GRID))
    for way, width, method in ways:
        if is_narrow(found.lower, found.upper, width):
            return found
        try:
            low, high = way(composition)
        except _OUT_OF_REACH:
            continue
        # NaN, and bounds that contradict others, would be defects. They must
        # not pass for bounds.
        if low <= high and low <= found.upper and found.lower <= high:
            best = method if high < found.upper else found.method
            found = Found(max(found.lower, low), min(found.upper, high), best)
    return found
