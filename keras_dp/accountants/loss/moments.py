"""Moments of a privacy loss from nodes, precise also where they are tiny.

With the nodes `l_j` and weights `q_j` of the loss,

    M(b) = E_Q[e^((1+b) l)] = 1 + sum_j q_j F(l_j),
    F(y) = e^((1+b) y) - 1 - (1+b) (e^y - 1) >= 0,

as `E_Q[e^l] = 1`. Nothing cancels in the second form, so that `M(b) - 1` keeps
its relative precision where it is far below the spacing of floats at 1.
"""

import math

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.loss_distribution import Nodes

# exp() of it is finite, and of nothing much larger.
_EXPONENT = 600.0
# Below it the power series of F is used; 15 terms reach 1e-17 of the first.
_SMALL_EXPONENT = 0.5
_SERIES_TERMS = 15


def log_moments(nodes: Nodes, tilt: Array) -> Array:
    """Returns `log M(tilt)` for tilts of shape `[n, 1]`."""
    losses = np.broadcast_to(nodes.losses, (tilt.size, nodes.losses.size))
    excess = log_excess_power(tilt, losses) + nodes.log_weights
    peak = excess.max(axis=1)
    total = np.exp(excess - peak[:, None]).sum(axis=1)
    return np.asarray(np.logaddexp(0, peak + np.log(total)))


def log_excess_power(excess: Array, y: Array) -> Array:
    """Returns `log F(y)`, relatively precise for every `y`.

    Args:
        excess: `b = a - 1 > 0`, of a shape to be broadcast against `y`.
        y: Log-likelihood ratios.

    Returns:
        `log(e^(a y) - 1 - a (e^y - 1))`, `-inf` at 0.
    """
    by = excess * y
    floor = np.maximum(y, -_EXPONENT)  # Beyond it F is b to every digit.
    with np.errstate(divide="ignore", invalid="ignore"):
        # F = e^y (expm1(b y) + b expm1(-y)).
        result: Array = floor + np.log(
            np.expm1(np.minimum(by, _EXPONENT)) + excess * np.expm1(-floor)
        )
    result = result + np.maximum(by - _EXPONENT, 0)
    small = np.abs(y + by) < _SMALL_EXPONENT
    if small.any():
        result[small] = _log_series(
            np.broadcast_to(excess, y.shape)[small], y[small]
        )
    return result


def _log_series(excess: Array, y: Array) -> Array:
    """Returns `log F` as `log sum_(k>=2) (a^k - a) y^k / k!`."""
    log_order = np.log1p(excess)
    total = np.zeros_like(y)
    for k in range(_SERIES_TERMS, 1, -1):
        coefficient = np.expm1((k - 1) * log_order) / math.factorial(k)
        total = total * y + coefficient
    with np.errstate(divide="ignore"):
        return np.asarray(2 * np.log(np.abs(y)) + np.log(total) + log_order)
