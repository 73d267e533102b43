"""Rényi divergence of sums of bounded records with any unimodal noise."""

import functools

import numpy as np
from scipy import special

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.normalize.mechanisms import AdditiveNoise, Encoding
from keras_dp.accountants.renyi.shifted_noise import ORDERS, total_log_moments

# All integers up to the largest order.
_K = np.arange(2.0, ORDERS[-1] + 1)
# More choices are bounded together, by the largest moment of each order.
_MOST_CHOICES = 256
# Exceeds the rounding of log-gamma at a large order.
_ROUND_UP = 1 + 1e-10


def log_moment(mechanism: AdditiveNoise, excess: Array) -> Array:
    """Returns a bound on `(a-1) D_a` of one round.

    Guarantee: let `r` be the density of the output without the record and `p`
    the one with it in the sample. For an integer order `a`

        e^((a-1) D_a) = sum_(k=0..a) C(a,k) q^k (1-q)^(a-k) E_r[(p/r)^k],

    and `E_r[(p/r)^k]` is the product of `I_k(v_t)` over all coordinates of all
    sums of the round, where `I_k` is the moment of `shifted_noise` and, for
    the Gaussian sums together, `e^(k(k-1)/(2 z^2))`. Each is 1 at `k = 0` and
    `k = 1`, at least 1 elsewhere, and grows with `|v_t|`, so that a record
    whose coordinates, in any order and with any signs, are within a vector of
    the bounds moves the output no further than that vector itself. The
    largest value over the vectors is taken for each order and each round
    before rounds are added, as the record may be another one in each.

    The involution `x -> v - x` swaps `r` and `p` as the noise is symmetric:
    the other direction is not larger. Between the orders of `ORDERS` the log
    moment, which is convex in the order and 0 at 1, is bounded by its chord,
    and so is `log I_k` between the `k`; beyond the last one there is no bound.

    Args:
        mechanism: With a `noise_multiplier` > 0.
        excess: `a - 1` > 0, shape `[n]`.

    Returns:
        Shape `[n]`, `inf` where there is no bound.

    Source: Nasr et al. (2020), arXiv:2007.11524v1, Lemmas 4 and 5, with the
    prefactor `1/(a-1)` and the binomial coefficients that equations 20 and 22
    lack; one direction: Mironov, Talwar, Zhang (2019), arXiv:1908.10530v1,
    Theorem 5.
    """
    values = _at_orders(mechanism)
    if not np.isfinite(values).all():
        return np.full_like(excess, np.inf)
    known = np.concatenate([[0.0], ORDERS - 1])
    chord = np.interp(excess, known, np.concatenate([[0.0], values]))
    return np.where(excess <= known[-1], chord, np.inf)


@functools.lru_cache(maxsize=4096)
def _at_orders(mechanism: AdditiveNoise) -> Array:
    """Returns log moments at `ORDERS`."""
    z, q = mechanism.noise_multiplier, mechanism.sampling_probability
    choices = _choices(mechanism.encodings)
    choices = choices + ORDERS * (ORDERS - 1) / (2 * z**2)
    if q < 1 and np.isfinite(choices).all():
        choices = np.stack([_sampled(q, choice) for choice in choices])
    return np.asarray(choices.max(axis=0) * _ROUND_UP)


def _choices(encodings: tuple[Encoding, ...]) -> Array:
    """Returns `log E[(p/r)^k]` for every choice of vectors, `[choices, k]`.

    Choices that no order could prefer are left out. If there still are too
    many, one row holds the largest of each order.
    """
    total = np.zeros((1, ORDERS.size))
    for encoding in encodings:
        moments = _undominated(_moments(encoding))
        if len(total) * len(moments) > _MOST_CHOICES:
            total = total.max(axis=0, keepdims=True)
            moments = moments.max(axis=0, keepdims=True)
        total = (total[:, None] + moments).reshape(-1, ORDERS.size)
    return total


def _undominated(rows: Array) -> Array:
    """Returns the rows that no single other row exceeds everywhere."""
    kept = np.empty((0, rows.shape[1]))
    for row in rows[np.argsort(-rows.sum(axis=1), kind="stable")]:
        if not (kept >= row).all(axis=1).any():
            kept = np.concatenate([kept, row[None]])
    return kept


@functools.lru_cache(maxsize=1024)
def _moments(encoding: Encoding) -> Array:
    levels = encoding.bounds.level_array().astype(np.float64)
    counts = encoding.bounds.count_array().astype(np.float64)
    return total_log_moments(encoding.noise, levels, counts)


def _sampled(q: float, log_moments: Array) -> Array:
    """Returns the logs of the binomial sums at `ORDERS`."""
    log_moment = np.interp(_K, ORDERS, log_moments)
    log_excess = log_moment + np.log(-np.expm1(-log_moment))
    log_binomials, missing = _binomials()
    terms = log_binomials + _K * np.log(q) + missing * np.log1p(-q)
    log_sum = special.logsumexp(terms + log_excess, axis=1)
    return np.asarray(np.logaddexp(0, log_sum))


@functools.cache
def _binomials() -> tuple[Array, Array]:
    """Returns logs of `C(a, k)`, and `a - k`, both `[orders, k]`."""
    order = ORDERS[:, None]
    missing = np.maximum(order - _K, 0)
    logs = special.gammaln(order + 1) - special.gammaln(_K + 1)
    logs = logs - special.gammaln(missing + 1)
    return np.where(order >= _K, logs, -np.inf), missing
