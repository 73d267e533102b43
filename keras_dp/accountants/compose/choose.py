"""Which method bounds epsilon and delta of a composition, and how they meet."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from keras_dp.accountants.compose import single_round
from keras_dp.accountants.compose.composition import (
    Composition,
    with_bundles,
    without_large_losses,
)
from keras_dp.accountants.compose.grid import bounds as grid_bounds
from keras_dp.accountants.compose.line import integral
from keras_dp.accountants.compose.many_noises import MANY
from keras_dp.accountants.loss import gaussian_profile
from keras_dp.accountants.loss.mixture import MixtureLaw
from keras_dp.errors import TooSlowError

# What `_gaussian_profile` rounds up by, and more.
_PROFILE_ERROR = 1e-11
# What normalization rounds noise multipliers down by, at most.
ROUNDED_DOWN = 1.1e-11
# Ratios of the noise in intervals of many rounds; the second if the first does
# not do.
_RATIOS = (1.25, 1.08)
# A grid is no better than the line for more rounds.
_MOST_ROUNDS = 1e4
# And takes its time for each kind of them.
_MOST_KINDS = 20
# What methods raise for ledgers that are out of all proportion.
_OUT_OF_REACH = (TooSlowError, ArithmeticError, LookupError, ValueError)
_NOTHING = (-math.inf, math.inf)


class _Method(Protocol):
    """A module that bounds epsilon and delta."""

    def epsilon_bounds(
        self, composition: Composition, log_delta: float, relative_width: float
    ) -> tuple[float, float]: ...

    def log_delta_bounds(
        self, composition: Composition, epsilon: float, relative_width: float
    ) -> tuple[float, float]: ...


def epsilons(
    composition: Composition,
    log_delta: float,
    relative_width: float,
    certain: float,
) -> tuple[float, float]:
    """Returns bounds on the least epsilon for `log_delta`.

    Args:
        composition: One order of the pairs of all rounds.
        log_delta: < 0.
        relative_width: How far apart they may be, as a share of the upper one.
        certain: Below it, it does not matter where epsilon is.
    """
    if not composition.laws:
        mu = _sensitivity(composition)
        upper = gaussian_profile.least_epsilon(
            np.asarray(mu * (1 + 1e-15)), np.asarray(log_delta)
        )
        lower = gaussian_profile.least_epsilon(
            np.asarray(mu * (1 - ROUNDED_DOWN)),
            np.asarray(log_delta + _PROFILE_ERROR),
        )
        return float(lower) * (1 - _PROFILE_ERROR), float(upper)
    single = _single(composition)
    if single is not None:
        return single_round.epsilon_bounds(single, log_delta)
    return _either(
        composition,
        lambda whole: log_delta,
        lambda whole: integral.largest_epsilon(whole, log_delta),
        lambda method, merged: method.epsilon_bounds(
            merged, log_delta, relative_width
        ),
        lambda found: (
            found[1] <= certain
            or found[1] - found[0] <= relative_width * found[1]
        ),
    )


def log_deltas(
    composition: Composition,
    epsilon: float,
    relative_width: float,
    certain: float,
) -> tuple[float, float]:
    """Returns bounds on the log of the least delta for `epsilon`.

    Args:
        composition: One order of the pairs of all rounds.
        epsilon: >= 0.
        relative_width: How far apart they may be.
        certain: Below it, it does not matter where log delta is.
    """
    if not composition.laws:
        mu = _sensitivity(composition)
        upper = gaussian_profile.log_delta(
            np.asarray(mu * (1 + 1e-15)), np.asarray(epsilon)
        )
        lower = gaussian_profile.log_delta(
            np.asarray(mu * (1 - ROUNDED_DOWN)), np.asarray(epsilon)
        )
        error = _PROFILE_ERROR * (1 - float(upper))
        return float(lower) - error, float(upper)
    single = _single(composition)
    if single is not None:
        return single_round.log_delta_bounds(single, epsilon)
    return _either(
        composition,
        lambda whole: integral.log_delta_about(whole, epsilon),
        lambda whole: integral.largest_log_delta(whole, epsilon),
        lambda method, merged: method.log_delta_bounds(
            merged, epsilon, relative_width
        ),
        lambda found: (
            found[1] <= certain or found[1] - found[0] <= relative_width
        ),
    )


def _sensitivity(composition: Composition) -> float:
    return math.sqrt(composition.gaussian)


def _single(composition: Composition) -> MixtureLaw | None:
    """Returns the law of a single sampled round with a closed form, if any."""
    if composition.gaussian or composition.counts.sum() != 1:
        return None
    law = composition.laws[0]
    if isinstance(law, MixtureLaw) and len(law.probabilities) == 2:
        return law
    return None


def _either(
    composition: Composition,
    log_delta: Callable[[Composition], float],
    largest: Callable[[Composition], float],
    bounds: Callable[[_Method, Composition], tuple[float, float]],
    is_narrow: Callable[[tuple[float, float]], bool],
) -> tuple[float, float]:
    """Returns bounds from the line, or if that is too long from a grid."""
    lower, upper = _NOTHING
    with np.errstate(all="ignore"), contextlib.suppress(*_OUT_OF_REACH):
        first = largest(with_bundles(composition, _RATIOS[0]))
        upper = first if not math.isnan(first) else upper
        if is_narrow((lower, upper)):
            return lower, upper
    for simpler in _simpler(composition, log_delta):
        found = _attempt(bounds, integral, simpler)
        lower, upper = max(lower, found[0]), min(upper, found[1])
        if lower > -math.inf and is_narrow((lower, upper)):
            return lower, upper
    if lower > 0 and composition.counts.sum() > _MOST_ROUNDS:
        return lower, upper
    if upper < math.inf and composition.counts.size > _MOST_KINDS:
        return lower, upper
    found = _attempt(bounds, grid_bounds, composition)
    if not any(law.is_bound for law in composition.laws):
        lower = max(lower, found[0])
    return lower, min(upper, found[1])


def _attempt(
    bounds: Callable[[_Method, Composition], tuple[float, float]],
    method: _Method,
    composition: Composition,
) -> tuple[float, float]:
    """Returns bounds, or that there are none where numbers are too large."""
    with np.errstate(all="ignore"):
        try:
            lower, upper = bounds(method, composition)
        except _OUT_OF_REACH:
            return _NOTHING
    # Also false for numbers that are none.
    return (lower, upper) if lower <= upper else _NOTHING


def _simpler(
    composition: Composition, log_delta: Callable[[Composition], float]
) -> Iterator[Composition]:
    """Yields what is easier to integrate, the most likely to do first."""
    if composition.counts.size >= MANY:
        for ratio in _RATIOS:
            bundled = with_bundles(composition, ratio)
            yield bundled
            if not bundled.bundles:
                return
        return
    try:
        with np.errstate(all="ignore"):
            about = log_delta(composition)
            kept_back = integral.is_kept_back(composition, about)
            shorter = without_large_losses(composition, about)
    except _OUT_OF_REACH:
        return
    if not kept_back:
        yield composition
    if shorter.left_out:
        yield shorter
