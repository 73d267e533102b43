"""Moments of a loss from nodes, and of rounds together."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.loss_distribution import LossLaw, Nodes
from keras_dp.accountants.loss.moments import log_moments

# exp() of it is finite.
_EXPONENT = 600.0
# Below it a series of so many terms has 1e-17 of its first one.
_SMALL, _TERMS = 0.5, 16


class Moments(NamedTuple):
    """`K` and its first two derivatives, each of shape `[n]`."""

    log_moment: Array
    mean: Array
    variance: Array


def composed_moments(
    weighted_laws: Sequence[tuple[LossLaw, float]],
    gaussian: float,
    tilts: Array,
) -> Moments:
    """Returns `K`, `K'` and `K''` of rounds together, at real tilts.

    Args:
        weighted_laws: Of the losses, and how many rounds there are of each.
        gaussian: `mu^2` of the Gaussian rounds without sampling.
        tilts: > 0, shape `[n]`.
    """
    c = tilts[:, None]
    log_moment = gaussian * tilts * (1 + tilts) / 2
    mean = gaussian * (tilts + 0.5)
    variance = np.full_like(tilts, gaussian)
    for law, count in weighted_laws:
        nodes = law.nodes(float(tilts.min()), float(tilts.max()), 0.0)
        weights = tilted_weights(nodes, c)
        center = tilted_means(nodes, c)
        squares = (nodes.losses - center[:, None]) ** 2
        log_moment = log_moment + count * log_moments(nodes, c)
        mean = mean + count * center
        variance = variance + count * (weights * squares).sum(axis=1)
    return Moments(log_moment, mean, variance)


def tilted_weights(nodes: Nodes, tilt: Array) -> Array:
    """Returns the laws `e^(tilt l) dP / M(tilt)` on the nodes, a row each."""
    logs = (1 + tilt) * nodes.losses + nodes.log_weights
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def tilted_means(nodes: Nodes, tilt: Array) -> Array:
    """Returns the means of the tilted laws.

    Losses of both signs nearly cancel where they are small. As `E_Q[e^l - 1]
    = 0`, the mean is `E_Q[l (e^((1+s) l) - 1) - (e^l - 1 - l)] / M(s)`, in
    which both terms are of the second order.
    """
    logs = (1 + tilt) * nodes.losses
    largest = float(logs.max())
    if largest > _EXPONENT:
        return np.asarray(tilted_weights(nodes, tilt) @ nodes.losses)
    grown = nodes.losses * np.expm1(logs) - _second_order(nodes.losses)
    moment = np.exp(log_moments(nodes, tilt))
    return np.asarray((grown @ np.exp(nodes.log_weights)) / moment)


def _second_order(x: Array) -> Array:
    """Returns `e^x - 1 - x`."""
    small = np.abs(x) < _SMALL
    series = np.zeros_like(x)
    for k in range(_TERMS, 1, -1):
        series = series * x + 1 / math.factorial(k)
    return np.where(small, series * x * x, np.expm1(x) - x)
