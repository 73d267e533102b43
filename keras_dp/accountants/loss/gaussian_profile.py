"""The privacy profiles of one Gaussian release and of one sampled one.

Not sampled, exact in both directions: with sensitivity `mu` in noise stddevs
and `u = epsilon/mu - mu/2`,

    delta = Phi(-u) - e^epsilon Phi(-u - mu) = phi(u) (M(u) - M(u + mu)),

where `phi` is the normal density and `M(u) = Phi(-u) / phi(u)` the Mills
ratio. The second form neither overflows nor underflows, and `u` is a better
variable than epsilon: it moves by tens while epsilon moves by any amount.

Sampled: where the likelihood ratio exceeds `e^epsilon` is a half-line, as
without sampling, and the other data set is the same. With `q` the probability,
`g` the profile of the round without sampling and `t` its epsilon at the same
half-line,

    removed: delta = q g(t),                      e^epsilon = 1 + q (e^t - 1),
    added:   delta = q g(t) / (q + (1 - q) e^t), e^-epsilon = 1 + q (e^-t - 1).

Source: Balle and Wang (2018), arXiv:1805.06530v2, Theorem 8; Li, Qardaji, Su
(2012), arXiv:1101.2604v2, Theorem 1, for removing a record of a sample; Zhu,
Dong, Wang (2022), arXiv:2106.08567v4, Section 5.2, for both.
"""

import math

import numpy as np
from scipy import special

from keras_dp.accountants.arrays import EPSILON, EXPONENT, Array
from keras_dp.accountants.loss.mixture import MixtureLoss

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


def log_delta(sensitivity: Array | float, epsilon: Array | float) -> Array:
    """Returns the log of the least delta, rounded up.

    The sensitivity is `mu` > 0, in noise stddevs. Shapes are broadcast.
    """
    mu = np.asarray(sensitivity)
    with np.errstate(over="ignore"):
        ratio = np.minimum(epsilon / mu, _LARGEST)
    # delta falls in u, so that rounding u down rounds delta up.
    u = ratio - mu / 2 - 2e-16 * (ratio + mu)
    return np.minimum(_log_profile(mu, np.minimum(u, _FARTHEST)), 0)


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


_ROUNDING = 4 * EPSILON
# Twice the amount by which the Gaussian profile is rounded up.
_PROFILE_ERROR = 2e-12
# The derivative of log delta in the quantile is at most the quantile plus this.
_STEEP = 2.0


def log_delta_bounds(loss: MixtureLoss, epsilon: float) -> tuple[float, float]:
    """Returns bounds on the log of the least delta of one round.

    The loss is a mixture of two components.
    """
    q = loss.probabilities[1]
    growth = math.expm1(min(epsilon, EXPONENT))
    if not loss.is_added:
        t = math.log1p(growth / q)
        if epsilon > EXPONENT:
            t = epsilon - math.log(q)
        return _log_deltas(loss, t, _ROUNDING * (1 + t))
    # This is 1 - (1-q) e^epsilon. Below 0, epsilon exceeds the largest loss,
    # and delta is 0.
    left = q - (1 - q) * growth
    error = _ROUNDING * (q + growth) if q < 1 else 0.0
    if q == 1:
        return _log_deltas(loss, epsilon, 0.0)
    ends = []
    for side in (-1, 1):
        end = left + side * error
        t = math.log1p(growth / end) if end > 0 else math.inf
        found = _log_deltas(loss, t, _ROUNDING * t) if end > 0 else None
        ends.append(found[(side + 1) // 2] if found else -math.inf)
    return ends[0], ends[1]


def _log_deltas(
    loss: MixtureLoss, t: float, error: float
) -> tuple[float, float]:
    """Returns bounds on log delta, with `t` known up to `error`."""
    q = loss.probabilities[1]
    mu = 1 / loss.noise_multiplier
    value = float(log_delta(mu, t))
    # The error of the quantile gives the error of the logarithm of `g`.
    quantile = t / mu - mu / 2
    moved = (_ROUNDING * (t + mu * mu) + error) / mu
    slack = moved * (abs(quantile) + _STEEP)
    log_share = math.log(q)
    if loss.is_added and q < 1:
        log_share -= float(np.logaddexp(log_share, math.log1p(-q) + t))
        slack += error + _ROUNDING * (1 + t)
    slack += _ROUNDING * (abs(log_share) + abs(value))
    value += log_share
    return value - slack - _PROFILE_ERROR, min(value + slack, 0.0)
