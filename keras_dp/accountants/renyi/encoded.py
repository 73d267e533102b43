"""Rényi divergence of sums of bounded records with any unimodal noise.

They follow from the moments of the likelihood ratio of a noise and its shift.
For a symmetric, unimodal density `z` of scale 1 and a shift `t`,

    I_k(t) = int (z(x-t) / z(x))^k z(x) dx,

which is nondecreasing in `|t|`: it is the convolution of `z^k`, symmetric and
unimodal, with `z^(1-k)`, symmetric and rising in `|x|`.

With `y = log(z(x-t) / z(x))` it is `1 + int z F(y)`, for the `F` of
`loss.loss_distribution`,
which is `>= 0`, so that neither cancellation nor overflow occurs for any
shift. Double-exponential changes of variable, which cluster at 0 and at `t`,
and adaptive Gauss-Legendre panels in logs follow kinks there, boundary layers
of width `1/k` and peaks far out. The logarithm of `log(I_k(t)) / t^2` is
smooth in `log(t)`, and a cubic spline interpolates it.
"""

import functools
import itertools
import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.polynomial import legendre
from scipy import special

from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.normalize.mechanisms import AdditiveNoise, Encoding
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import NoiseDistribution

# Integers from 2 to 256, so close that a chord of a parabola is within 0.1 %.
ORDERS = np.concatenate(
    [np.arange(2, 65), np.arange(68, 129, 4), np.arange(136, 257, 8)]
).astype(np.float64)
# Shifts in units of the scale. Below the first one the limit of small shifts
# holds to a few times the largest order; the last is out of all use, and
# beyond it there is no bound.
_LEAST_SHIFT, _MOST_SHIFT = 1e-5, 1e8
_NODES_PER_OCTAVE = 8
# Its square is a float, far below the square of any other shift.
_TINY = 1e-100
# Exceeds the error of quadrature and spline, measured against 60 digits, ten
# times.
_MOMENT_ROUND_UP = 1 + 1e-6
# Largest number of shifts in memory.
_BLOCK = 2**13

# Below this `k y` the power series of F is right to 1e-13.
_SMALL = 0.1
_SERIES_TERMS = 10
# Where the changes of variable end: exp(-45) is a negligible share of an
# interval, and a negligible distance from its ends, in scales.
_LAST = np.arcsinh(45.0)
_PANELS = 9
_POINTS, _WEIGHTS = legendre.leggauss(15)
# A rule on every other point, exact for polynomials. Its error is about the
# root of that of the full rule.
_COARSE = np.zeros_like(_WEIGHTS)
_COARSE[1::2] = np.linalg.solve(
    legendre.legvander(_POINTS[1::2], 6).T, [2.0, 0, 0, 0, 0, 0, 0]
)
_LOG_TOLERANCE = np.log(1e-6)
# The families of this library need a twelfth of it.
_MOST_PANELS = 1000


def check_noise(noise: NoiseDistribution) -> None:
    """Raises unless there are moments for shifts of `noise`.

    They need a finite Fisher information, and a density that can be integrated.
    """
    if not math.isfinite(noise.fisher_information):
        raise UnsupportedEventError(
            "`noise` must have a finite Fisher information: without, many "
            f"small coordinates have no bound. Received: noise={noise!r}."
        )
    _curves_of(noise)


def log_moments(noise: NoiseDistribution, shifts: Array) -> Array:
    """Returns `log I_k` for every shift and the `k` of `ORDERS`, rounded up.

    Shifts are >= 0, in the unit of the noise, of shape `[n]`. The result, of
    shape `[n, orders]`, is 0 for a shift of 0, and `inf` beyond 1e8 scales.
    """
    curve, limits = _curves_of(noise)
    shift = np.maximum(shifts / noise.scale, _TINY)
    inside = np.clip(shift, _LEAST_SHIFT, _MOST_SHIFT)
    logs = curve(np.log(inside))
    # Near 0 the curve is nearly a line from the limit to the first node.
    small = (shift < _LEAST_SHIFT)[:, None]
    logs = np.where(small, np.maximum(logs, limits), logs)
    result = np.exp(logs + 2 * np.log(shift)[:, None]) * _MOMENT_ROUND_UP
    result[shift > _MOST_SHIFT] = np.inf
    result[shifts == 0] = 0.0
    return np.asarray(result)


def _curves_of(
    noise: NoiseDistribution,
) -> tuple[Callable[[Array], Array], Array]:
    """Returns a spline of `log(log(I_k) / t^2)` over `log t`, and its limits.

    The limit at 0 is the log of `k (k-1) / 2` times the Fisher information.
    """
    found = _curves(noise.scaled(1 / noise.scale))
    if found is None:
        raise UnsupportedEventError(
            "`noise` must have a density that is smooth but at 0. Received: "
            f"noise={noise!r}, whose moments cannot be integrated. A "
            "distribution that is normal but for far tails is one."
        )
    return found


@functools.lru_cache(maxsize=64)
def _curves(
    noise: NoiseDistribution,
) -> tuple[Callable[[Array], Array], Array] | None:
    """Returns the curves of a distribution of scale 1; None without any."""
    octaves = np.log2(_MOST_SHIFT / _LEAST_SHIFT)
    size = int(octaves * _NODES_PER_OCTAVE) + 1
    log_shifts = np.linspace(np.log(_LEAST_SHIFT), np.log(_MOST_SHIFT), size)
    values = []
    for each in log_shifts:
        excess = _log_excess(noise, np.exp(each))
        if excess is None:
            return None
        values.append(np.log(np.logaddexp(0, excess)) - 2 * each)
    limits = np.log(ORDERS * (ORDERS - 1) / 2 * noise.fisher_information)
    return scipy.interpolate.CubicSpline(log_shifts, values), np.asarray(limits)


def _log_excess(noise: NoiseDistribution, shift: float) -> Array | None:
    """Returns `log(I_k(shift) - 1)` for the orders, None if it is too hard."""
    lines = np.linspace(-_LAST, _LAST, 2 * _PANELS + 1)
    halves = np.linspace(0, _LAST, _PANELS + 1)
    panels = np.array(
        [(0, *ends) for ends in itertools.pairwise(lines)]
        + [(1, *ends) for ends in itertools.pairwise(halves)]
    )
    areas, errors = _areas(noise, shift, panels)
    while len(panels) < _MOST_PANELS:
        total = special.logsumexp(areas, axis=1)
        coarse = (errors > total[:, None] + _LOG_TOLERANCE).any(axis=0)
        if not coarse.any():
            return np.asarray(total)
        kind, start, end = panels[coarse].T
        middle = (start + end) / 2
        left = np.stack([kind, start, middle], axis=1)
        right = np.stack([kind, middle, end], axis=1)
        split = np.concatenate([left, right])
        more_areas, more_errors = _areas(noise, shift, split)
        panels = np.concatenate([panels[~coarse], split])
        areas = np.concatenate([areas[:, ~coarse], more_areas], axis=1)
        errors = np.concatenate([errors[:, ~coarse], more_errors], axis=1)
    return None


def _areas(
    noise: NoiseDistribution, shift: float, panels: Array
) -> tuple[Array, Array]:
    """Returns logs of the integral of `z F(y)`, and of errors.

    Both are of shape `[orders, panels]`. The noise has scale 1. Panels are rows
    of kind, start and end.
    """
    kind, start, end = panels.T[:, :, None]
    t = (start + end) / 2 + (end - start) / 2 * _POINTS
    sinh = np.sinh(t)
    log_width = np.log(np.cosh(t)) + np.log((end - start) / 2)
    # Kind 0: distances from 0 to the left, and from the shift to the right.
    # Kind 1: shares of the way from one of them to the other, up to 1/2.
    # Thus no argument of the density is a small difference of large numbers.
    share = special.expit(-sinh)
    is_line = kind == 0
    near = np.where(is_line, np.exp(sinh), shift * share)
    far = np.where(is_line, shift + near, shift * (1 - share))
    log_slope = np.where(
        is_line, sinh, np.log(shift * share) + special.log_expit(sinh)
    )
    log_near, log_far = noise.log_density(near), noise.log_density(far)
    y = np.stack([log_far - log_near, log_near - log_far])
    log_weight = np.stack([log_near, log_far]) + log_slope + log_width
    grown, factor = _excess_power(y)
    log_terms = grown + log_weight
    peak = log_terms.max(axis=(1, 3), keepdims=True)
    terms = (factor * np.exp(log_terms - peak)).sum(axis=1)
    area = terms @ _WEIGHTS
    with np.errstate(divide="ignore"):
        error = np.log(np.abs(area - terms @ _COARSE))
        return np.log(area) + peak[:, 0, :, 0], error + peak[:, 0, :, 0]


def _excess_power(y: Array) -> tuple[Array, Array]:
    """Returns `max(k y, 0)` and the rest of `F(y)`, with axes added for k."""
    order = ORDERS.reshape(-1, *[1] * y.ndim)
    ky = order * y
    shrunk = np.exp(-np.abs(ky))
    linear = 1 + order * np.expm1(np.minimum(y, EXPONENT))
    factor = np.where(ky > 0, 1 - shrunk * linear, shrunk - linear)
    grown = np.maximum(ky, 0)
    small = np.abs(ky) < _SMALL
    each, *point = np.nonzero(small)
    series = _series(ORDERS[each], y[tuple(point)])
    factor[small] = series * np.exp(-grown[small])
    return grown, factor


def _series(order: Array, y: Array) -> Array:
    """Returns `F(y)` as `sum_(j>=2) (k^j - k) y^j / j!`."""
    total = np.zeros_like(y)
    for j in range(_SERIES_TERMS, 1, -1):
        total = total * y + (order**j - order) / special.factorial(j)
    return np.asarray(total * y * y)


# All integers up to the largest order.
_K = np.arange(2.0, ORDERS[-1] + 1)
# More choices are bounded together, by the largest moment of each order.
_MOST_CHOICES = 256
# Exceeds the rounding of log-gamma at a large order.
_ROUND_UP = 1 + 1e-10


def log_moment(mechanism: AdditiveNoise, excess: Array) -> Array:
    """Returns a bound on `(a-1) D_a` of one round; `inf` where there is none.

    Guarantee: let `r` be the density of the output without the record and `p`
    the one with it in the sample. For an integer order `a`

        e^((a-1) D_a) = sum_(k=0..a) C(a,k) q^k (1-q)^(a-k) E_r[(p/r)^k],

    and `E_r[(p/r)^k]` is the product of `I_k(v_t)` over all coordinates of all
    sums of the round, where `I_k` is the moment of a shift and, for
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
    """Returns `log prod_t I_k(v_t)` for each vector, `[vectors, orders]`."""
    levels = encoding.bounds.level_array().astype(np.float64)
    counts = encoding.bounds.count_array().astype(np.float64)
    total = np.zeros((len(levels), ORDERS.size))
    for row, vector in zip(total, levels, strict=True):
        for start in range(0, vector.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            row += counts[part] @ log_moments(encoding.noise, vector[part])
    return total


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
