"""Rounds together: their privacy losses and the moments of the sum."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.compose.many_noises import (
    Family,
    Interval,
    families,
)
from keras_dp.accountants.loss.log_moments import (
    Moments,
    log_moments_of_nodes,
)
from keras_dp.accountants.loss.log_moments import moments as moments_of
from keras_dp.accountants.loss.loss_distribution import LossDistribution

# An error of `K` that no result shows.
_GOOD = 1e-11


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """Rounds in one adjacency direction each.

    Attributes:
        families: Single sampled rounds, and how many there are of each.
        gaussian: `mu^2`, of all Gaussian rounds without sampling together.
        known: Log moments that were computed, and their errors.
    """

    families: tuple[Family, ...]
    gaussian: float
    known: dict[bytes, tuple[Array, Array]] = dataclasses.field(
        default_factory=dict
    )

    def with_noise(self, gaussian: float) -> "Composition":
        """Returns the same with one more Gaussian release."""
        return Composition(self.families, self.gaussian + gaussian)

    @property
    def largest(self) -> float:
        """The largest sum of losses, in nats; may be infinite."""
        if self.gaussian > 0:
            return math.inf
        return math.fsum(each.largest for each in self.families)

    def intervals(self, tilt: float, tolerance: float) -> list[Interval]:
        """Returns losses that stand for the rounds at tilts up to `tilt`.

        Raises:
            TooSlowError: There would be too many losses.
        """
        return [
            interval
            for family in self.families
            for interval in family.intervals(tilt, tolerance)
        ]


def composed(
    losses: Sequence[LossDistribution], counts: Array, gaussian: float = 0.0
) -> Composition:
    """Returns the composition of `counts[i]` rounds of each `losses[i]`."""
    return Composition(families(losses, counts), gaussian)


def moments(composition: Composition, tilts: Array) -> Moments:
    """Returns about `K = log M` and its first two derivatives at `tilts`.

    Args:
        composition: The rounds.
        tilts: Real, > 0, shape `[n]`.

    Raises:
        TooSlowError: A moment has no quadrature.
    """
    gaussian = composition.gaussian
    log_moment = gaussian * tilts * (1 + tilts) / 2
    mean = gaussian * (tilts + 0.5)
    variance = np.full_like(tilts, gaussian)
    for interval in composition.intervals(float(tilts.max()), _GOOD):
        for loss, weight in zip(
            interval.losses, interval.weights.tolist(), strict=True
        ):
            found = moments_of(loss, tilts)
            log_moment = log_moment + weight * found.log_moment
            mean = mean + weight * found.mean
            variance = variance + abs(weight) * found.variance
    return Moments(log_moment, mean, variance)


def log_moments(composition: Composition, tilts: Array) -> tuple[Array, Array]:
    """Returns `K`, and bounds on its errors, rounding of `K` itself apart."""
    key = tilts.tobytes()
    if key not in composition.known:
        composition.known[key] = _log_moments(composition, tilts)
    return composition.known[key]


def _log_moments(composition: Composition, tilts: Array) -> tuple[Array, Array]:
    total = composition.gaussian * tilts * (1 + tilts) / 2
    errors = np.zeros_like(tilts)
    for interval in composition.intervals(float(tilts.max()), _GOOD):
        nodes = [loss.nodes(float(tilts.max())) for loss in interval.losses]
        found = [log_moments_of_nodes(each, tilts[:, None]) for each in nodes]
        off = [math.exp(min(each.log_error, EXPONENT)) for each in nodes]
        more, error = interval.total(
            np.array(found), np.outer(off, np.ones_like(tilts)), _GOOD
        )
        total, errors = total + more, errors + error
    return total, errors
