"""Rounds together: their privacy losses and the moments of the sum."""

import dataclasses
import math

import numpy as np

from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.loss.loss_distribution import (
    LossDistribution,
    Moments,
    log_moments_of_nodes,
    moments_of_loss,
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """Rounds in one adjacency direction each.

    Attributes:
        losses: The loss distribution of one round, for each sampled kind.
        counts: How many rounds there are of each, shape `[losses]`.
        gaussian: `mu^2`, of all Gaussian rounds without sampling together.
        known: Log moments that were computed, and their errors.
    """

    losses: tuple[LossDistribution, ...]
    counts: Array
    gaussian: float = 0.0
    known: dict[bytes, tuple[Array, Array]] = dataclasses.field(
        default_factory=dict
    )

    def with_noise(self, gaussian: float) -> "Composition":
        """Returns the same with one more Gaussian release."""
        return Composition(self.losses, self.counts, self.gaussian + gaussian)

    @property
    def largest(self) -> float:
        """The largest sum of losses, in nats; may be infinite."""
        if self.gaussian > 0:
            return math.inf
        return math.fsum(
            count * loss.largest
            for loss, count in zip(
                self.losses, self.counts.tolist(), strict=True
            )
        )


def moments_of_sum(composition: Composition, tilts: Array) -> Moments:
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
    for loss, count in zip(
        composition.losses, composition.counts.tolist(), strict=True
    ):
        found = moments_of_loss(loss, tilts)
        log_moment = log_moment + count * found.log_moment
        mean = mean + count * found.mean
        variance = variance + count * found.variance
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
    for loss, count in zip(
        composition.losses, composition.counts.tolist(), strict=True
    ):
        nodes = loss.nodes(float(tilts.max()))
        total = total + count * log_moments_of_nodes(nodes, tilts[:, None])
        error = math.exp(min(nodes.log_error, EXPONENT))
        errors = errors + count * math.log1p(error)
    return total, errors
