"""Rounds together: their privacy losses and the moments of the sum."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.compose.many_noises import Bundle, bundled
from keras_dp.accountants.loss.log_moments import Moments
from keras_dp.accountants.loss.log_moments import log_moments as log_moments_of
from keras_dp.accountants.loss.log_moments import moments as moments_of
from keras_dp.accountants.loss.loss_distribution import LossDistribution


class Composition(NamedTuple):
    """Rounds in one adjacency direction each.

    Attributes:
        losses: Losses of single sampled rounds.
        counts: How many rounds there are of each, shape `[losses]`.
        gaussian: `mu^2`, of all Gaussian rounds without sampling together.
        bundles: More sampled rounds, of many kinds.
    """

    losses: Sequence[LossDistribution]
    counts: Array
    gaussian: float
    bundles: Sequence[Bundle] = ()

    @property
    def largest(self) -> float:
        """The largest sum of losses, in nats; may be infinite."""
        if self.gaussian > 0 or self.bundles:
            return math.inf
        ends = [loss.largest for loss in self.losses]
        return float(self.counts @ np.array(ends))


def moments(composition: Composition, tilts: Array) -> Moments:
    """Returns `K = log M` and its first two derivatives at real `tilts`.

    Args:
        composition: The rounds.
        tilts: > 0, shape `[n]`.

    Raises:
        TooSlowError: A moment has no quadrature.
    """
    gaussian = composition.gaussian
    log_moment = gaussian * tilts * (1 + tilts) / 2
    mean = gaussian * (tilts + 0.5)
    variance = np.full_like(tilts, gaussian)
    for loss, count in _weighted(composition):
        found = moments_of(loss, tilts)
        log_moment = log_moment + count * found.log_moment
        mean = mean + count * found.mean
        variance = variance + count * found.variance
    return Moments(log_moment, mean, variance)


def log_moments(composition: Composition, tilts: Array) -> Array:
    """Returns `K` alone, which takes a third of the time."""
    total = composition.gaussian * tilts * (1 + tilts) / 2
    for loss, count in _weighted(composition):
        total = total + count * log_moments_of(loss, tilts)
    return total


def log_moment_error(composition: Composition, tilt: float) -> float:
    """Returns a bound on the error of `K(tilt)`, rounding apart.

    `inf` where bundles have none.
    """
    error = sum(
        float(count) * math.exp(min(loss.nodes(tilt).log_error, 600.0))
        for loss, count in zip(
            composition.losses, composition.counts, strict=True
        )
    )
    return error + sum(
        float(bundle.errors(tilt, np.zeros(1))[0])
        for bundle in composition.bundles
    )


def _weighted(
    composition: Composition,
) -> list[tuple[LossDistribution, float]]:
    """Returns losses and counts, those that stand for bundles included."""
    found = list(
        zip(composition.losses, composition.counts.tolist(), strict=True)
    )
    for bundle in composition.bundles:
        found += zip(bundle.losses, bundle.weights.tolist(), strict=True)
    return found


def with_bundles(composition: Composition, ratio: float) -> Composition:
    """Returns the same with many losses that differ in their noise bundled.

    Args:
        composition: Without bundles.
        ratio: Largest ratio of noises in an interval, > 1. Closer to 1, the
            error of the bundles shrinks and their cost grows.
    """
    losses, counts, bundles = bundled(
        composition.losses, composition.counts, ratio
    )
    return Composition(
        tuple(losses), np.array(counts), composition.gaussian, tuple(bundles)
    )
