"""Rényi divergence of pairs of Gaussian mixtures, at any real order > 1."""

import functools
import math

import numpy as np

from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.loss.log_moments import log_moments_of_nodes
from keras_dp.accountants.loss.loss_distribution import Nodes
from keras_dp.accountants.loss.mixture import MixtureLoss
from keras_dp.accountants.loss.of_normal_output import REACH, OutputLoss
from keras_dp.accountants.loss.replace_one import ReplaceOneLoss
from keras_dp.errors import TooSlowError

# Smaller probabilities are rounded up to this one.
_LEAST_PROBABILITY = 1e-100
# Largest estimated number of nodes; the true number is at most five times as
# large. No order that could be best needs more.
_MOST_NODES = 2.0**17
# The orders of an interval share nodes. Each interval is this many times as
# long as the one before.
_RATIO = 4.0
# This interval, and those beyond, end with the largest order that is asked for.
_FAR = 3
# Largest product of orders and nodes in memory.
_BLOCK = 2**20
# Below it the replaced record also has the bound of one that is removed.
_LITTLE_NOISE = 0.01
# More than the rounding of a few functions.
_ROUND_UP = 1 + 1e-14


def sampled(
    probability: float, noise_multiplier: float, excess: Array
) -> Array:
    """Returns `(a-1) D_a` of `SampledGaussian`, in the larger direction."""
    q = max(probability, _LEAST_PROBABILITY)
    loss = MixtureLoss(noise_multiplier, (1 - q, q), is_added=False)
    return log_moment(loss, q, excess)


def replaced(
    probability: float, noise_multiplier: float, excess: Array
) -> Array:
    """Returns `(a-1) D_a` of `SampledGaussianReplaceOne`.

    With next to no noise the two records are hardly ever mistaken for each
    other, but for none of both: `Q >= (1-q) N(0, z^2)` gives the bound of
    `SampledGaussian` and `-log(1-q)` for each unit of `a-1`.
    """
    q = max(probability, _LEAST_PROBABILITY)
    found = log_moment(ReplaceOneLoss(noise_multiplier, q), q, excess)
    if noise_multiplier < _LITTLE_NOISE:
        more = -excess * math.log1p(-q)
        found = np.minimum(found, sampled(q, noise_multiplier, excess) + more)
    return found


def log_moment(loss: OutputLoss, probability: float, excess: Array) -> Array:
    """Returns `(a-1) D_a(P || Q)` of a dominating pair from its loss.

    The trapezoidal rule of `OutputLoss` converges geometrically, and every
    term of the sum is positive, so that neither overflow nor cancellation
    occurs: 1e-14 relative, measured against 60 digits.

    Where it would take too many nodes (`z` near 0) the value is a bound. The
    function `x^a y^(1-a)` is convex in both together, and a round is, with the
    chance `q`, the one without sampling and else tells nothing, so that
    `E_P[(P/Q)^(a-1)] <= 1 - q + q e^(a (a-1) turn^2 / 2)`.

    Args:
        loss: The privacy loss of one round.
        probability: `q`, with which the loss is another than 0.
        excess: `a - 1` > 0, shape `[n]`.

    Returns:
        Shape `[n]`, > 0.

    Source: Mironov, Talwar, Zhang (2019), arXiv:1908.10530v1, section 3. They
    give a finite sum for integer and a series for other orders; this is one
    integral for both. `D(P || Q)` is the larger direction (Theorem 5).
    """
    turn = loss.turn
    result = _told(probability, excess * (1 + excess) * turn**2 / 2)
    steps = np.maximum(1.0, np.sqrt(excess) * loss.denominator_turn)
    nodes = ((1 + excess) * turn + 2 * REACH) * np.maximum(steps, turn)
    # Up to the first end, most nodes are around 0.
    first = 2 * REACH / turn
    ends = np.maximum(np.ceil(np.log(excess / first) / math.log(_RATIO)), 0.0)
    ends[nodes > _MOST_NODES] = -1.0
    for end in sorted({*ends.tolist()} - {-1.0}):
        rows = np.flatnonzero(ends == end)
        most = first * _RATIO**end
        if end >= _FAR:
            most = min(most, float(excess[rows].max()))
        try:
            found = _nodes(loss, most)
        except TooSlowError:
            continue
        for part in np.array_split(
            rows, math.ceil(rows.size * found.losses.size / _BLOCK)
        ):
            moments = log_moments_of_nodes(found, excess[part, None])
            result[part] = np.minimum(result[part], moments)
    return np.asarray(result)


def _told(probability: float, without: Array) -> Array:
    """Returns `log(1 - q + q e^without)`, rounded up, for `without` > 0."""
    small = np.log1p(probability * np.expm1(np.minimum(without, EXPONENT)))
    large = without + math.log(probability) + math.exp(-EXPONENT) / probability
    result = np.where(without < EXPONENT, small, np.minimum(large, without))
    return np.asarray(result * _ROUND_UP)


@functools.lru_cache(maxsize=4096)
def _nodes(loss: OutputLoss, excess: float) -> Nodes:
    """Returns nodes for all orders minus one up to `excess`."""
    return loss.nodes(excess, most_nodes=int(5 * _MOST_NODES))
