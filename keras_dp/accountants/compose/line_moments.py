"""The moment generating function along a line, to many digits.

For `n` equal rounds an error of one round's logarithm counts `n` times: next to
nothing may be lost where a moment is next to 1.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.arrays import (
    EPSILON,
    EXPONENT,
    Array,
    Complex,
    expm1_less,
    log1p,
)
from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.loss.loss_distribution import (
    LossDistribution,
    moments_of_loss,
)

# Rounding of a term of a sum, in units of `EPSILON`.
TERM = 8.0
# Rounding of an exponent, in the same units, as shares of the log of the tilted
# ratio and of the log of the density, whose sum it is.
_RATIO, _DENSITY = 4.0, 2.0
# This many exponentials are computed; the others are products of them.
_EXPONENTIALS = 32
# OpenBLAS computes products of so many terms on one core.
_TERMS_OF_A_CORE = 2**16
# It takes so many to make up for cores that are busy otherwise.
_TERMS_OF_ALL_CORES = 2**24


class Tilted(NamedTuple):
    """One round's loss on a path, tilted.

    Attributes:
        mean: Mean of the tilted loss, about.
        log_moment: `log M(tilt)`.
        losses: Less their mean, shape `[n]`.
        weights: Sum 1, shape `[n]`.
        error: Bound on the error of a moment, relative to `M(tilt)`.
        spreads: Bounds on the rounding of `M(tilt + i t)`, relative to
            `M(tilt)`, in units of `EPSILON`: of `t` and of `t^2`.
    """

    mean: float
    log_moment: float
    losses: Complex
    weights: Complex
    error: float
    spreads: tuple[float, float]


class Paths(NamedTuple):
    """All losses of a composition on their paths, and the counts of rounds."""

    tilted: tuple[Tilted, ...]
    counts: tuple[float, ...]

    @property
    def size(self) -> int:
        """The number of nodes of all paths together."""
        return sum(each.losses.size for each in self.tilted)


def paths(composition: Composition, tilt: float, frequency: float) -> Paths:
    """Returns all losses on paths good up to `frequency`."""
    return Paths(
        tuple(_tilted(loss, tilt, frequency) for loss in composition.losses),
        tuple(composition.counts.tolist()),
    )


@functools.lru_cache(maxsize=64)
def _tilted(loss: LossDistribution, tilt: float, frequency: float) -> Tilted:
    path = loss.nodes(tilt, frequency)
    logs = (1 + tilt) * path.losses + path.log_weights
    weights = np.exp(logs - logs.real.max())
    found = moments_of_loss(loss, tilt)
    losses = np.asarray(path.losses - found.mean, np.complex128)
    weights = weights / weights.sum()
    # A weight is an exponential: the rounding of its exponent is its relative
    # error. Losses are computed from their parts. A term is `w (e^x - 1 - x)`
    # with `x = i t l`, at most `2 |x|` and `|x|^2 / 2`.
    exponents = TERM + _RATIO * (1 + tilt) * np.abs(path.losses)
    exponents += _DENSITY * np.abs(path.log_weights)
    sizes, lengths = np.abs(weights), np.abs(losses)
    parts = TERM * (lengths + 2 * abs(found.mean))
    return Tilted(
        found.mean,
        found.log_moment,
        losses,
        np.asarray(weights),
        math.exp(min(path.log_error, EXPONENT)),
        (
            float(2 * sizes @ (exponents * lengths + parts)),
            float((sizes * lengths) @ (exponents * lengths / 2 + parts)),
        ),
    )


def log_ratios(found: Paths, step: float, size: int) -> tuple[Complex, Array]:
    """Returns `K(c + i t) - K(c) - i t K'(c)` of the losses on the line.

    And `log(1 + e)`, both of shape `[size]`, where `e` bounds the relative
    error of the exponential.
    """
    total = np.zeros(size, dtype=np.complex128)
    errors = np.zeros(size)
    for each, count in zip(found.tilted, found.counts, strict=True):
        part, error = _log_ratio(each, step, size)
        total += count * part
        # |a^n - b^n| <= (|b| + e)^n - |b|^n, where |a - b| <= e.
        errors += count * np.log1p(error)
    return total, errors


def points(step: float, size: int) -> Array:
    """Returns `Im s` of the points on the upper half of a line."""
    return np.asarray(step * np.arange(size, dtype=np.float64))


def _log_ratio(each: Tilted, step: float, size: int) -> tuple[Complex, Array]:
    """Returns the same for one round, and the relative error of `M`."""
    change = _characteristic(each.losses, each.weights, step, size)
    t = points(step, size)
    first, second = each.spreads
    rounding = np.minimum(first * t, second * t * t)
    error = each.error + EPSILON * rounding
    # Where the moment is far below 1, the rounding of the 1 counts too.
    left = np.abs(1 + change)
    error = error + np.where(left < 0.5, TERM * EPSILON, 0.0)
    return log1p(change), error / np.maximum(left, 1e-300)


def _characteristic(
    losses: Complex, weights: Complex, step: float, size: int
) -> Complex:
    """Returns `sum_j w_j (e^(i t l_j) - 1)` for `t = 0, step, ...`.

    The mean of the losses is 0: `i t l_j` is left out, with what rounding
    would leave of it.
    """
    block = math.isqrt(size - 1) + 1
    fine = 1j * step * losses
    # With e(x) = e^x - 1 it is e(a) e(b) + e(a) + e(b) at x = a + b, in which
    # nothing cancels.
    near, far = _excess(fine, block).T, _excess(block * fine, block)
    coarse = block * fine * np.arange(block)[:, None]
    fine = fine[:, None] * np.arange(block)
    left = (far + coarse) * weights
    around = _product(left, near + fine)
    around += (far * weights).sum(axis=1)[:, None]
    around += (weights[:, None] * near).sum(axis=0)
    return np.asarray(around.ravel()[:size])


def _product(left: Complex, right: Complex) -> Complex:
    """Returns `left @ right`, on one core if it is small.

    While a training keeps the cores busy, threads of OpenBLAS wait for each
    other: a product of 20 microseconds then takes up to 50 milliseconds.
    """
    rows, inner = left.shape
    terms = rows * right.shape[1]
    part = inner
    if terms * inner < _TERMS_OF_ALL_CORES:
        part = max(1, _TERMS_OF_A_CORE // terms)
    return sum(
        (
            left[:, start : start + part] @ right[start : start + part]
            for start in range(0, inner, part)
        ),
        start=np.zeros((rows, right.shape[1]), dtype=np.complex128),
    )


def _excess(x: Complex, size: int) -> Complex:
    """Returns `e^(k x) - 1 - k x` for `k = 0, 1, ...`, a row each.

    Precise where it is small. Only some exponentials are computed; with `f`
    this function, `f(a + b) = e(a) e(b) + f(a) + f(b)`.
    """
    found = np.empty((size, x.size), dtype=np.complex128)
    first = min(size, _EXPONENTIALS)
    found[:first] = expm1_less(np.arange(first)[:, None] * x)
    while first < size:
        more = min(first, size - first)
        last = expm1_less(first * x)
        step = last + first * x
        rows = found[:more] + np.arange(more)[:, None] * x
        found[first : first + more] = rows * step + found[:more] + last
        first += more
    return found
