"""A law of few losses in the place of one of many, to find where to look.

Cells are merged into the mean of the likelihood ratio, so that moments are a
little low. Nothing that is certified depends on it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.loss_distribution import LossLaw

# Distances from 0 and from a finite end, in nats.
_DISTANCES = 2.0 ** np.arange(-60.0, 24.0, 1 / 8)
# Near the mean, in standard deviations.
_NEAR = np.linspace(-30.0, 30.0, 361)
# Tilts that are tried, and then near the best of them.
_TILTS = 2.0 ** np.arange(-14.0, 62.0, 2.0)
_FINER = (
    2.0 ** np.linspace(-2, 2, 17),
    2.0 ** np.linspace(-1 / 4, 1 / 4, 9),
    2.0 ** np.linspace(-1 / 16, 1 / 16, 9),
    2.0 ** np.linspace(-1 / 64, 1 / 64, 9),
)
# Losses nearer to an end than that are not told apart from it.
_NEXT = 1e-15


class CoarseLaw(NamedTuple):
    """A law on given losses.

    Attributes:
        losses: In rising order, shape `[n]`.
        log_weights: Logs of the masses of `Q`, shape `[n]`.
        rounds: How many there are of it.
    """

    losses: Array
    log_weights: Array
    rounds: float

    def moments(self, tilts: Array) -> tuple[Array, Array, Array]:
        """Returns `log M` at `tilts`, and mean and variance under them."""
        logs = np.multiply.outer(1 + tilts, self.losses) + self.log_weights
        peaks = logs.max(axis=1)
        weights = np.exp(logs - peaks[:, None])
        totals = weights.sum(axis=1)
        weights /= totals[:, None]
        means = weights @ self.losses
        squares = (self.losses - means[:, None]) ** 2
        return peaks + np.log(totals), means, (weights * squares).sum(axis=1)


def inner_ends(law: LossLaw) -> tuple[float, float]:
    """Returns the ends of the support, moved inwards by what rounding may be.

    A loss between an end and this is not told apart from the end.
    """
    least, most = law.support
    if math.isfinite(least):
        least += _NEXT * (1 + abs(least))
    if math.isfinite(most):
        most -= _NEXT * (1 + abs(most))
    return least, most


def within(law: LossLaw, places: Array) -> Array:
    """Returns those of `places` that are inside of the support, in order."""
    least, most = inner_ends(law)
    places = np.unique(places)
    return places[(places > least) & (places < most)]


def coarse_law(
    law: LossLaw,
    count: float,
    means: Sequence[tuple[float, float]],
    log_mass: float,
) -> CoarseLaw:
    """Returns a law on a few thousand losses.

    Args:
        law: The law.
        count: How many rounds there are.
        means: Pairs of a mean and a standard deviation, near which it is finer.
        log_mass: Log of the mass of `P` that may be cut off above.
    """
    least, most = law.support
    places = [-_DISTANCES, np.zeros(1), _DISTANCES]
    if math.isfinite(least):
        places.append(least + _DISTANCES)
    if math.isfinite(most):
        places.append(most - _DISTANCES)
    places += [mean + stddev * _NEAR for mean, stddev in means]
    edges = within(law, np.concatenate(places))
    log_p, log_r = law.log_masses(edges)
    above = np.logaddexp.accumulate(log_p[::-1])[::-1]
    lows, highs = np.append(edges[0], edges), np.append(edges, edges[-1])
    kept = (log_r > -np.inf) & (log_p > -np.inf) & (above > log_mass)
    losses = log_p[kept] - log_r[kept]
    # Only rounding puts a mean outside of its cell, but for the two tails.
    inner = np.clip(losses, lows[kept], highs[kept])
    inner[0] = min(losses[0], inner[0])
    return CoarseLaw(inner, log_r[kept], count)


def composed_moments(
    laws: Sequence[CoarseLaw], tilts: Array
) -> tuple[Array, Array, Array]:
    """Returns `log M` of the rounds together, and mean and variance."""
    found = [law.moments(tilts) for law in laws]
    counts = [law.rounds for law in laws]
    log_moment, mean, variance = (
        np.sum([c * each[i] for c, each in zip(counts, found, strict=True)], 0)
        for i in range(3)
    )
    return log_moment, mean, variance


def chernoff(laws: Sequence[CoarseLaw], log_delta: float) -> float:
    """Returns about the best bound on epsilon by moments."""
    tilts, least = _TILTS, math.inf
    for octaves in _FINER:
        logs, _, _ = composed_moments(laws, tilts)
        poles = (1 + tilts) * np.log1p(tilts) - tilts * np.log(tilts)
        bounds = (logs - log_delta - poles) / tilts
        least = min(least, float(bounds.min()))
        tilts = tilts[int(np.argmin(bounds))] * octaves
    return max(0.0, least)


def saddle_point(laws: Sequence[CoarseLaw], epsilon: float) -> float:
    """Returns about where `K(c) - c epsilon - log(c (c+1))` is least."""
    tilts = _TILTS
    for octaves in _FINER:
        _, mean, _ = composed_moments(laws, tilts)
        rises = mean - epsilon - 1 / tilts - 1 / (1 + tilts) > 0
        first = int(np.argmax(rises)) if rises.any() else tilts.size - 1
        tilts = tilts[first] * octaves
    return float(tilts[tilts.size // 2])
