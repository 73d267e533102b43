"""The privacy profile of one Gaussian release, exact in both directions.

With sensitivity `mu` in noise stddevs and `u = epsilon/mu - mu/2`,

    delta = Phi(-u) - e^epsilon Phi(-u - mu) = phi(u) (M(u) - M(u + mu)),

where `phi` is the normal density and `M(u) = Phi(-u) / phi(u)` the Mills
ratio. The second form neither overflows nor underflows, and `u` is a better
variable than epsilon: it moves by tens while epsilon moves by any amount.

Source: Balle and Wang (2018), arXiv:1805.06530v2, Theorem 8.
"""

import numpy as np
from scipy import special

from keras_dp.accountants.arrays import Array

# Beyond this `u`, `M' = u M - 1` loses its digits; an asymptotic series does
# not.
_FAR = 40.0
# Far beyond the `u` at which delta is below every float.
_FARTHEST = 1e6
_LARGEST = 1e300
# From this `mu` on, the difference of M(u) and M(u + mu) loses no digits.
_DISTANT = 1.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
# Ten times the error measured against 50 digits.
_ROUND_UP = 1e-12
_SUM_ERROR = 1e-15
# Newton's method takes about eight.
_MOST_ITERATIONS = 100


def log_delta(sensitivity: Array | float, epsilon: Array | float) -> Array:
    """Returns the log of the least delta, rounded up.

    Args:
        sensitivity: `mu` > 0, in noise stddevs.
        epsilon: >= 0, of a shape to be broadcast against `sensitivity`.
    """
    mu = np.asarray(sensitivity)
    with np.errstate(over="ignore"):
        ratio = np.minimum(epsilon / mu, _LARGEST)
    # delta falls in u, so that rounding u down rounds delta up.
    u = ratio - mu / 2 - 2e-16 * (ratio + mu)
    return np.minimum(_log_profile(mu, np.minimum(u, _FARTHEST)), 0)


def least_epsilon(
    sensitivity: Array | float, log_delta: Array | float
) -> Array:
    """Returns the least epsilon for `log_delta`, rounded up.

    Args:
        sensitivity: `mu` > 0, in noise stddevs.
        log_delta: <= 0, of a shape to be broadcast against `sensitivity`.

    Returns:
        At least 0, of the common shape.
    """
    mu, target = np.broadcast_arrays(sensitivity, log_delta)
    # There Phi(-u) <= exp(-u^2/2) is delta already. As delta is a convolution
    # of two log-concave functions its log is concave in u: Newton's method
    # comes from the right and never passes the root.
    u = np.maximum(np.sqrt(2 * np.abs(target)), -mu / 2)
    for _ in range(_MOST_ITERATIONS):
        value = _log_profile(mu, u)
        log_other = np.log(_mills(u + mu)) + _log_density(u)
        step = (value - target) / (mu * np.exp(log_other - value))
        nearer = np.maximum(u + np.minimum(step, 0), -mu / 2)
        if np.all(u - nearer <= _SUM_ERROR * (1 + np.abs(u))):
            break
        u = nearer
    free = _log_profile(mu, -mu / 2) <= target
    with np.errstate(over="ignore"):
        found = mu * (u + mu / 2) * (1 + _ROUND_UP)
    return np.where(free, 0.0, found)


def _log_profile(mu: Array, u: Array) -> Array:
    """Returns `log delta` at `u >= -mu/2`, rounded up."""
    mu, u = np.broadcast_arrays(mu, u)
    log_density = _log_density(u)
    right = np.maximum(u, 0)
    log_tail = special.log_ndtr(-u)
    log_other = np.log(_mills(np.maximum(u + mu, 0))) + log_density
    # One form for u < 0, one for u >= 0, and one for small mu, where both
    # cancel.
    with np.errstate(divide="ignore"):
        share = np.exp(np.minimum(log_other - log_tail, 0))
        left = log_tail + np.log1p(-share)
        apart = np.log(_mills(right) - _mills(right + mu)) + log_density
    step = np.minimum(mu, _DISTANT)
    points = u[..., None] + step[..., None] * (1 + _NODES) / 2
    slope = _minus_mills_slope(np.maximum(points, -_DISTANT))
    close = np.log(slope @ _WEIGHTS) + np.log(step / 2) + log_density
    result = np.where(u < 0, left, apart)
    result = np.where(mu < _DISTANT, close, result)
    return np.asarray(result + _ROUND_UP + _SUM_ERROR * np.abs(result))


def _log_density(u: Array) -> Array:
    return np.asarray(-u * u / 2 - np.log(2 * np.pi) / 2)


def _mills(x: Array) -> Array:
    return np.asarray(np.sqrt(np.pi / 2) * special.erfcx(x / np.sqrt(2)))


def _minus_mills_slope(x: Array) -> Array:
    """Returns `1 - x M(x)` for `x >= -1`, relatively precise."""
    square = np.maximum(x, _FAR) ** 2
    series = np.ones_like(square)
    for k in range(8, 0, -1):
        series = 1 - (2 * k + 1) / square * series
    return np.where(x < _FAR, 1 - x * _mills(x), series / square)
