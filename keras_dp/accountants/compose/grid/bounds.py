"""Delta of few composed rounds, between two compositions on a grid.

The line integral of the moment generating function falls too slowly for few
rounds, above all if the loss nearly has an atom. Here each law stands between
two laws on a grid (`_grid_pairs`), which are composed by fast Fourier
transforms of the weights `e^(c l) P(l) / M(c)`. With the saddle point as `c`
precision is relative: `1e-30` is as easy as `1e-5`.

What is added or subtracted on the safe side: masses that were cut off, weight
that comes round from outside of the window (by Chernoff's bound), the rounding
of the transforms, and that of the masses. A mass `p` of `P` and `r` of `Q`
with a relative error is the same as another loss: the loss of each round is
taken as uncertain by `_LOSS_ERROR`. Errors of where an edge is move mass to a
neighbour, where it is as good.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.grid.coarse import (
    CoarseLaw,
    chernoff,
    coarse_law,
    composed_moments,
    saddle_point,
)
from keras_dp.accountants.compose.grid.fft import Window, log_peak, windows
from keras_dp.accountants.compose.grid.pessimistic import (
    Span,
    grid_pairs,
    span_of,
)
from keras_dp.accountants.loss.mixture import MixtureLaw
from keras_dp.errors import TooSlowError

# Of the loss of one round, in nats.
_LOSS_ERROR = 1e-13
# The first grid is to find how fine the second one must be.
_FIRST_POINTS, _MOST_POINTS, _MOST_CELLS = 1 << 13, 1 << 22, 1 << 22
_FIRST_CELLS = 1 << 8
_MOST_STARTS, _MOST_GRIDS = 6, 9
# If the result is that far from what the grid was chosen for, in units of the
# logarithm of delta, the grid is chosen anew.
_MOVED = 1.0
_FINEST, _COARSEST = 1 / 16, 0.8
_MARGIN = 0.8
# Errors of the cut and of the window, as shares of the tolerated one, and of
# what delta may be less than guessed.
_LOG_SHARE, _LOG_FIRST_SHARE = math.log(1e-4), math.log(1e-12)
# What may be cut off above, relative to delta and the tolerance.
_LOG_CUT = math.log(1e-6)
# If there is no lower bound, delta may be less than guessed by that.
_LOWER_GUESS = 20.0
_LEAST_TOLERANCE, _LEAST_TILT = 1e-13, 1e-4
# Laws are looked at closely near the mean that the coarser ones have.
_REFINEMENTS = 2
# Of the first window, in standard deviations.
_WINDOW = 24.0
# Next to the largest loss delta is only bounded from above.
_NEAR_LARGEST = 1e-9
# Finer grids end where the width falls by less.
_WORTHWHILE = 0.7


class _Plan(NamedTuple):
    """What is the same on all grids.

    Attributes:
        composition: With the Gaussian part as one of the laws.
        coarse: A coarse law for each.
        epsilon: About.
        log_cut: Log of the mass of `P` that a round may have cut off above.
    """

    composition: Composition
    coarse: list[CoarseLaw]
    epsilon: float
    log_cut: float

    @property
    def slack(self) -> float:
        """How uncertain the sum of the losses is."""
        return _LOSS_ERROR * float(self.composition.counts.sum())


class _Tilted(NamedTuple):
    """How the laws are looked at.

    Attributes:
        tilt: `c`.
        log_moments: Of each law.
        spans: Of each law.
        counts: Of each law.
        stddev: Of the sum of the losses.
        log_astray: Log of the weight that may be outside of the window.
    """

    tilt: float
    log_moments: list[float]
    spans: list[Span]
    counts: list[float]
    stddev: float
    log_astray: float


def epsilon_bounds(
    composition: Composition, log_delta: float, relative_width: float
) -> tuple[float, float]:
    """Returns bounds on the least epsilon for `log_delta`.

    They are nearer to each other than `relative_width` unless that takes more
    than `_MOST_POINTS` points, or is below what rounding allows.

    Args:
        composition: The rounds, without bundles.
        log_delta: Log of delta, < 0.
        relative_width: Of the difference of the bounds to the upper one.
    """
    plan = _planned(
        composition,
        log_delta + math.log(relative_width) + _LOG_CUT,
        lambda coarse: chernoff(coarse, log_delta),
    )
    epsilon = plan.epsilon
    lower, upper, width = 0.0, math.inf, math.inf
    step, is_fresh = 0.0, True
    for grid in range(_MOST_GRIDS):
        tilted = _tilted(plan, epsilon, log_delta, relative_width, grid)
        if is_fresh:
            step, is_fresh = _first_step(tilted, step), False
        try:
            below, above = _windows(plan, tilted, step)
        except OverflowError:
            break
        low = below.epsilon(log_delta, epsilon) - plan.slack
        high = above.epsilon(log_delta, epsilon)
        lower = max(lower, low)
        upper = min(upper, high + plan.slack if high else 0.0)
        if upper - lower <= relative_width * upper:
            break
        before_epsilon = epsilon
        if math.isfinite(upper):
            epsilon = (lower + upper) / 2 if lower else upper
        if tilted.tilt * abs(before_epsilon - epsilon) > _MOVED and (
            grid < _MOST_STARTS
        ):
            width, is_fresh = math.inf, True
            continue
        before, width = width, upper - lower
        if grid and width > before * _WORTHWHILE:
            break
        finer = _next_step(tilted, above, relative_width * upper / width)
        if finer is None:
            break
        step = finer
    return lower, upper


def log_delta_bounds(
    composition: Composition, epsilon: float, relative_width: float
) -> tuple[float, float]:
    """Returns bounds on the log of the least delta for `epsilon`.

    They are nearer to each other than `relative_width` unless that takes more
    than `_MOST_POINTS` points, or is below what rounding allows.

    Args:
        composition: The rounds, without bundles.
        epsilon: >= 0.
        relative_width: Of the difference of the bounds.
    """
    most = _largest(composition)
    if epsilon >= most * (1 - _NEAR_LARGEST):
        if epsilon > most * (1 + _NEAR_LARGEST):
            return -math.inf, -math.inf
        before = most * (1 - 2 * _NEAR_LARGEST)
        return -math.inf, log_delta_bounds(composition, before, relative_width)[
            1
        ]
    log_cut = math.log(relative_width) + _LOG_CUT
    plan = _planned(composition, -math.inf, lambda _: epsilon)
    log_delta = _log_delta(plan)
    lower, upper, width = -math.inf, 0.0, math.inf
    step, is_fresh = 0.0, True
    for grid in range(_MOST_GRIDS):
        if is_fresh:
            plan = _planned(composition, log_delta + log_cut, lambda _: epsilon)
        tilted = _tilted(plan, epsilon, log_delta, relative_width, grid)
        if is_fresh:
            step, is_fresh = _first_step(tilted, step), False
        try:
            below, above = _windows(plan, tilted, step)
        except OverflowError:
            break
        lower = max(lower, below.log_delta(epsilon + plan.slack))
        upper = min(upper, above.log_delta(epsilon - plan.slack))
        if upper - lower <= relative_width:
            break
        guess = log_delta
        if math.isfinite(lower):
            log_delta = (lower + upper) / 2
        else:
            log_delta = min(upper, log_delta) - _LOWER_GUESS
        if abs(guess - log_delta) > _MOVED and grid < _MOST_STARTS:
            width, is_fresh = math.inf, True
            continue
        before, width = width, upper - lower
        if grid and width > before * _WORTHWHILE:
            break
        finer = _next_step(tilted, above, relative_width / width)
        if finer is None:
            break
        step = finer
    return lower, upper


def _largest(composition: Composition) -> float:
    """Returns the largest sum of losses."""
    if composition.gaussian > 0:
        return math.inf
    ends = [law.support[1] for law in composition.laws]
    return float(composition.counts @ np.array(ends))


def _log_delta(plan: _Plan) -> float:
    """Returns about what log delta is."""
    tilt = saddle_point(plan.coarse, plan.epsilon)
    log_moment, _, variance = composed_moments(plan.coarse, np.array([tilt]))
    # What the integral through the saddle point would be without the pole.
    spread = float(variance[0]) + 1 / tilt**2
    log_delta = float(log_moment[0]) - tilt * plan.epsilon
    log_delta -= math.log(tilt * (1 + tilt))
    return log_delta - math.log(2 * math.pi * spread) / 2


def _planned(
    composition: Composition,
    log_cut: float,
    start: Callable[[list[CoarseLaw]], float],
) -> _Plan:
    """Returns the plan, from a first tilt and epsilon for coarse laws.

    Args:
        composition: The rounds.
        log_cut: Log of the mass of `P` that all rounds may have cut off above.
        start: Returns about what epsilon is.
    """
    if composition.bundles:
        raise TooSlowError
    laws, counts = list(composition.laws), composition.counts
    if composition.gaussian > 0:
        noise = 1 / math.sqrt(composition.gaussian)
        laws.append(MixtureLaw(noise, (0.0, 1.0), False))
        counts = np.append(counts, 1)
    log_cut -= math.log(float(counts.sum()))
    means: list[list[tuple[float, float]]] = [[] for _ in laws]
    for _ in range(_REFINEMENTS):
        coarse = [
            coarse_law(*each, log_cut)
            for each in zip(laws, counts.tolist(), means, strict=True)
        ]
        epsilon = start(coarse)
        tilt = np.array([saddle_point(coarse, epsilon)])
        for law, found in zip(coarse, means, strict=True):
            _, mean, variance = law.moments(tilt)
            found.append((float(mean[0]), math.sqrt(float(variance[0]))))
    return _Plan(Composition(laws, counts, 0.0), coarse, epsilon, log_cut)


def _tilted(
    plan: _Plan,
    epsilon: float,
    log_delta: float,
    relative_width: float,
    grid: int,
) -> _Tilted:
    """Returns how to look at the laws, near where the result will be."""
    tilt = saddle_point(plan.coarse, epsilon)
    at = np.array([tilt])
    found = np.array([np.ravel(law.moments(at)) for law in plan.coarse])
    counts = plan.composition.counts
    log_moment, _, variance = counts @ found
    tolerance = relative_width * min(1.0, max(tilt * epsilon, _LEAST_TILT))
    log_share = math.log(max(tolerance, _LEAST_TOLERANCE))
    log_share += _LOG_SHARE if grid else _LOG_FIRST_SHARE
    # Of the weights, relative to what delta is of the largest it could be.
    log_astray = log_share + log_delta + tilt * epsilon - log_moment
    log_astray = min(log_astray - log_peak(tilt), log_share)
    found[:, 2] = np.sqrt(found[:, 2])
    log_weight = log_astray - math.log(float(counts.sum()))
    spans = [
        span_of(law, tilt, each, log_weight, plan.log_cut)
        for law, each in zip(plan.composition.laws, found.tolist(), strict=True)
    ]
    return _Tilted(
        tilt,
        found[:, 0].tolist(),
        spans,
        counts.tolist(),
        math.sqrt(variance),
        float(log_astray),
    )


def _first_step(tilted: _Tilted, before: float) -> float:
    """Returns the step of the first grid with other tilts than before."""
    lengths = [span.high - span.low for span in tilted.spans]
    total = sum(c * s for c, s in zip(tilted.counts, lengths, strict=True))
    widest = min(total, _WINDOW * tilted.stddev + max(lengths))
    step = min(widest / _FIRST_POINTS, min(lengths) / _FIRST_CELLS)
    step = max(step, widest * _FINEST / _FIRST_POINTS)
    # Rounding adds at most rounds h^2 c (c+1) / 8 to the log of a moment.
    curve = sum(tilted.counts) * tilted.tilt * (1 + tilted.tilt) / 8
    step = max(min(step, 1 / math.sqrt(curve)), widest / _MOST_POINTS)
    return min(max(before, _FINEST * step), step) if before else step


def _next_step(tilted: _Tilted, window: Window, ratio: float) -> float | None:
    """Returns the step for errors `ratio` times as large; None if too fine."""
    cells = sum(span.high - span.low for span in tilted.spans) / window.step
    finest = max(window.weights.size / _MOST_POINTS, cells / _MOST_CELLS)
    if finest > _COARSEST:
        return None
    change = math.sqrt(ratio) * _MARGIN
    return window.step * max(min(change, _COARSEST), _FINEST, finest)


def _windows(
    plan: _Plan, tilted: _Tilted, step: float
) -> tuple[Window, Window]:
    """Returns the lower and the upper bound on one grid."""
    laws = plan.composition.laws
    pairs = [
        grid_pairs(law, tilted.tilt, log_moment, span, step)
        for law, log_moment, span in zip(
            laws, tilted.log_moments, tilted.spans, strict=True
        )
    ]
    counts = [round(count) for count in tilted.counts]
    return windows(tilted.tilt, pairs, counts, step, tilted.log_astray)
