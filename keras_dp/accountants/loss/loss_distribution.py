"""The privacy loss distribution (PLD) of one round, in one direction.

A round has a dominating pair of distributions `P`, `Q` for each adjacency
direction (a record is removed, or added). Its privacy loss is `l = log dP/dQ`
under `P`, and `M(s) = E_P[e^(s l)] = E_Q[e^((1+s) l)]` is the moment generating
function. Losses are finite here: `P` and `Q` have the same null sets.

`log_moments(loss, tilts)` is the entry for all who need the moments of a pair
of distributions: the Rényi divergence of order `a` is `log M(a - 1) / (a - 1)`.
"""

import abc
import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_dp.accountants.arrays import EXPONENT, Array, Points, expm1_less

# Quadratures are off by more than the exponential of it.
_LEAST = -30.0
# Below it the power series of F is used; 15 terms reach 1e-17 of the first.
_SMALL_EXPONENT = 0.5
_SERIES_TERMS = 15


class Decay(NamedTuple):
    """Integrals of the size of `e^((1+s) l) Q` on paths of several heights.

    An analytic integrand has the same integral on every path. The integral of
    its size bounds that, and falls with the frequency `t` as `|e^(i t l)| =
    e^(-t Im l)`. Each row is one path.

    Attributes:
        log_sizes: Log of the size at `t = 0`, times the step, over `M(tilt)`.
        turns: `Im l` >= 0, of the same shape.
    """

    log_sizes: Array
    turns: Array

    def log_size(self, frequency: float) -> float:
        """Returns a bound on `log |M(c + i t) / M(c)|`, `t >= frequency`."""
        logs = self.log_sizes - frequency * self.turns
        peaks = logs.max(axis=1)
        totals = np.exp(logs - peaks[:, None]).sum(axis=1)
        least = float((peaks + np.log(totals)).min())
        return min(max(least, _LEAST), 0.0)


# A loss of which nothing is known.
NO_DECAY = Decay(np.zeros((1, 1)), np.zeros((1, 1)))


class Nodes(NamedTuple):
    """Points and weights that stand for `Q` in integrals of the loss.

    Each of shape `[n]`:

        M(s) = 1 + sum_j q_j (e^((1+s) l_j) - 1 - (1+s) (e^(l_j) - 1)),

    as `E_Q[e^l] = 1`. For small losses nothing cancels in the bracket.

    They are real for real `s`. For `s` with `Im s >= 0` they may be on a path
    above the real line. The loss is an analytic function of the output. Where
    the output moves into the complex plane, to the side on which `Im l > 0`,
    the factor `|e^(i t l)|` is at most 1: few nodes do for every frequency `t`.

    Attributes:
        losses: `l_j`, in nats, with `Im l_j >= 0`.
        log_weights: `log q_j`.
        log_error: Log of a bound on `|error| / M(Re s)`, for the `s` that
            were asked for.
    """

    losses: Points
    log_weights: Points
    log_error: float


class LossDistribution(abc.ABC):
    """The privacy loss of one round, in one adjacency direction.

    `nodes` raises `TooSlowError` where there would be too many.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def largest(self) -> float:
        """The supremum of all losses, in nats; may be infinite."""

    @abc.abstractmethod
    def nodes(self, tilt: float, frequency: float = 0.0) -> Nodes:
        """Returns nodes for `s = tilt + i t`, `0 <= t <= frequency`.

        Without a frequency they are for all real `s` in `(0, tilt]`.
        """

    @abc.abstractmethod
    def decay(self, tilt: float) -> Decay:
        """Returns how fast `M(tilt + i t)` falls with `t`, at least.

        Where less is known than is true, it costs time or width, not truth.
        """


def conversion(excess: Array) -> Array:
    """Returns how much more than `e^(K - b epsilon)` bounds delta, in logs.

    That is `-((1+b) log(1+b) - b log(b))`, without cancellation: for every
    `b = excess > 0`, `log delta <= K(b) - b epsilon + conversion(b)`.

    Source: Canonne, Kamath, Steinke (2020), arXiv:2004.00010v4, Proposition
    12.
    """
    return np.asarray(-np.log1p(excess) - excess * np.log1p(1 / excess))


class Moments(NamedTuple):
    """Moments of the tilted losses `e^(tilt l) dP / M(tilt)`.

    The mean and the variance are the derivatives of `log M`.
    """

    log_moment: float
    mean: float
    variance: float


def log_moments(loss: LossDistribution, tilts: Array) -> Array:
    """Returns `log E_P[e^(s l)]` for `s = tilts > 0`, of shape `[n]`.

    It is relatively precise also next to 0.
    """
    nodes = loss.nodes(float(tilts.max()))
    return log_moments_of_nodes(nodes, tilts[:, None])


@functools.lru_cache(maxsize=1 << 12)
def moments_of_loss(loss: LossDistribution, tilt: float) -> Moments:
    """Returns `log M` and its first two derivatives at a tilt."""
    nodes = loss.nodes(tilt)
    log_moment = float(log_moments_of_nodes(nodes, np.array([[tilt]]))[0])
    logs = (1 + tilt) * nodes.losses + nodes.log_weights
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = _mean(nodes, tilt, log_moment, weights)
    variance = float(weights @ (nodes.losses - mean) ** 2)
    return Moments(log_moment, mean, variance)


def log_moments_of_nodes(nodes: Nodes, tilt: Array) -> Array:
    """Returns `log M(tilt)` for tilts of shape `[n, 1]`, relatively precise."""
    losses = np.broadcast_to(nodes.losses, (tilt.size, nodes.losses.size))
    excess = log_excess_power(tilt, losses) + nodes.log_weights
    peak = excess.max(axis=1)
    total = np.exp(excess - peak[:, None]).sum(axis=1)
    return np.asarray(np.logaddexp(0, peak + np.log(total)))


def _mean(
    nodes: Nodes, tilt: float, log_moment: float, weights: Array
) -> float:
    """Returns the mean of the tilted losses, which have weights.

    Small losses of both signs nearly cancel. As `E_Q[e^l - 1] = 0`, the mean
    is `E_Q[l (e^((1+s) l) - 1) - (e^l - 1 - l)] / M(s)`, in which both terms
    are of the second order.
    """
    logs = (1 + tilt) * nodes.losses
    if float(logs.max()) > EXPONENT:
        return float(weights @ nodes.losses)
    grown = nodes.losses * np.expm1(logs) - expm1_less(nodes.losses)
    total = float(grown @ np.exp(nodes.log_weights))
    return total / math.exp(log_moment)


def log_excess_power(excess: Array, y: Array) -> Array:
    """Returns `log F(y)`, relatively precise for every `y`.

    `F` is `e^(a y) - 1 - a (e^y - 1)` with `a - 1 = excess > 0`: the log is
    `-inf` at 0. Shapes are broadcast.
    """
    by = excess * y
    floor = np.maximum(y, -EXPONENT)  # Beyond it F is b to every digit.
    with np.errstate(divide="ignore", invalid="ignore"):
        # F = e^y (expm1(b y) + b expm1(-y)).
        result: Array = floor + np.log(
            np.expm1(np.minimum(by, EXPONENT)) + excess * np.expm1(-floor)
        )
    result = result + np.maximum(by - EXPONENT, 0)
    small = np.abs(y + by) < _SMALL_EXPONENT
    if small.any():
        result[small] = _log_series(excess, y, small)
    return result


def _log_series(excess: Array, y: Array, some: NDArray[np.bool_]) -> Array:
    """Returns `log F` as `log sum_(k>=2) (a^k - a) y^k / k!`, of some."""
    # Some excesses belong to very many places.
    places = np.arange(excess.size).reshape(excess.shape)
    at, near = np.broadcast_to(places, y.shape)[some], y[some]
    log_order = np.log1p(excess).ravel()
    total = np.zeros_like(near)
    for k in range(_SERIES_TERMS, 1, -1):
        total *= near
        total += (np.expm1((k - 1) * log_order) / math.factorial(k))[at]
    with np.errstate(divide="ignore"):
        return 2 * np.log(np.abs(near)) + np.log(total) + log_order[at]
