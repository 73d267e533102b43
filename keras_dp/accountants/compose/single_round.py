"""The privacy profile of one sampled Gaussian round, in closed form.

Where the likelihood ratio exceeds `e^epsilon` is a half-line, as without
sampling, and the other data set is the same. With `q` the probability, `g` the
profile of the Gaussian round without sampling and `t` its epsilon at the same
half-line,

    removed: delta = q g(t),                      e^epsilon = 1 + q (e^t - 1),
    added:   delta = q g(t) / (q + (1 - q) e^t), e^-epsilon = 1 + q (e^-t - 1).

Source: Li, Qardaji, Su (2012), arXiv:1101.2604v2, Theorem 1, for removing a
record; Zhu, Dong, Wang (2022), arXiv:2106.08567v4, Section 5.2, for both.
"""

import math

import numpy as np

from keras_dp.accountants.arrays import EPSILON, EXPONENT
from keras_dp.accountants.loss import gaussian_profile
from keras_dp.accountants.loss.mixture import MixtureLoss

_ROUNDING = 4 * EPSILON
# Twice the amount by which the Gaussian profile is rounded up.
_ROUND_UP = 2e-12
# The derivative of log delta in the quantile is at most the quantile plus this.
_STEEP = 2.0


def log_delta_bounds(loss: MixtureLoss, epsilon: float) -> tuple[float, float]:
    """Returns bounds on the log of the least delta for `epsilon`.

    Args:
        loss: A mixture of two components.
        epsilon: >= 0.

    >>> loss = MixtureLoss(1.0, (0.5, 0.5), is_added=False)
    >>> np.exp(log_delta_bounds(loss, 1.0)).round(6).tolist()
    [0.028868, 0.028868]
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
    value = float(gaussian_profile.log_delta(mu, t))
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
    return value - slack - _ROUND_UP, min(value + slack, 0.0)
