"""Tails and quantiles of a law that only its density is known of.

The density is integrated from the far end inwards, so that small tails are as
accurate, relative to their size, as large ones. With `w = -log(P(|X| > x))`,
the logarithm of `x` is a smooth function of the logarithm of `w`: a line near
0, and nearly one for tails that fall as powers of `x` or faster. Cubic Hermite
polynomials interpolate it; their slopes follow from the density.

Against the formulas of the families of this library the error is 1e-9,
relative to the tail (`tests/unit/ledger/test_tfp_noise.py`).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.polynomial import legendre

from keras_dp.ledger.events.noise_distribution import Array

# Sizes, in units of `1 / (2 f(0))`: between these ends all but nothing lies.
_LEAST, _MOST, _PER_DECADE = -20, 40, 500
_POINTS, _WEIGHTS = legendre.leggauss(8)
# Values at the points -> slopes there, of the polynomial through them.
_SLOPES = np.stack(
    [legendre.legval(_POINTS, legendre.legder(row)) for row in np.eye(8)],
    axis=1,
) @ np.linalg.inv(legendre.legvander(_POINTS, 7))
# A density that is off by more than rounding is not the one that is drawn.
_MASS_ERROR = 1e-7
# A word of 64 bits is never so small: no larger noise is drawn.
_NO_TAIL = -80 * math.log(2)
# From `w` of a uniform variable that rounds to 1, to that of the least word.
_FIRST, _LAST, _PER_UNIT = math.log(2.0**-60), math.log(64.5 * math.log(2)), 128
# Below this size, in units, rounding hides how the density falls.
_FISHER_FROM = 1e-12
_NEGLIGIBLE, _LEAST_POWER = 1e-9, 0.25


class Curve(NamedTuple):
    """A function between equal steps, each with a cubic polynomial.

    Attributes:
        start: Where the first step begins.
        step: The length of each.
        pieces: Coefficients in the share of a step, from the constant up,
            shape `[steps, 4]`.
    """

    start: float
    step: float
    pieces: Array

    def __call__(self, x: Array) -> Array:
        """Returns the values; outside of the steps that of the nearer end."""
        place = (np.asarray(x) - self.start) / self.step
        place = np.clip(place, 0.0, len(self.pieces))
        index = np.minimum(place.astype(np.int64), len(self.pieces) - 1)
        share, (a, b, c, d) = (
            place - index,
            np.moveaxis(self.pieces[index], -1, 0),
        )
        return np.asarray(a + share * (b + share * (c + share * d)))


class TabulatedLaw(NamedTuple):
    """The law of `|X|` for a density that is symmetric and unimodal.

    Attributes:
        unit: Half of the width of the box as high as the density at 0, > 0.
        variance: The variance; `inf` if the tails are so heavy that
            `x^3 f(x)` is no small number at `1e40` units.
        fisher_information: The Fisher information about the location; `inf`
            if it could not be bounded near 0.
        draws: `log(|X|)` by `log(w)`, for all uniform variables of 64 bits.
        tails: `log(w)` by `log(|X|)`.
        quantiles: `log(|X|)` by `log(w)`, for smaller tails too.
    """

    unit: float
    variance: float
    fisher_information: float
    draws: Curve
    tails: Curve
    quantiles: "scipy.interpolate.CubicHermiteSpline"

    def tail(self, z: Array) -> Array:
        """Returns `P(X > z)` for `z >= 0`."""
        low = self.tails.start
        high = low + self.tails.step * len(self.tails.pieces)
        with np.errstate(divide="ignore", over="ignore"):
            log_z = np.log(np.asarray(z, np.float64))
            w = np.exp(self.tails(log_z))
            found = 0.5 * np.exp(-np.where(log_z < low, 0.0, w))
        return np.asarray(np.where(log_z > high, 0.0, found))

    def size(self, tail: Array) -> Array:
        """Returns where `tail` has given values, in [0, 1/2]."""
        low, high = self.quantiles.x[[0, -1]]
        with np.errstate(divide="ignore"):
            log_w = np.log(-np.log(2 * np.asarray(tail, np.float64)))
        found = np.exp(self.quantiles(np.clip(log_w, low, high)))
        found = np.where(log_w < low, 0.0, found)
        return np.asarray(np.where(log_w > high, np.inf, found))


def tabulated(log_density: Callable[[Array], Array]) -> TabulatedLaw:
    """Returns the law that belongs to a density.

    Args:
        log_density: The logarithm of the density at `x >= 0`, which
            `NoiseDistribution` has checked.

    Raises:
        ValueError: The density does not integrate to 1; or its tails are so
            heavy that a draw could be infinite.
    """
    unit = 0.5 * math.exp(-float(log_density(np.zeros(1))[0]))
    log_unit = math.log(unit)
    count = (_MOST - _LEAST) * _PER_DECADE + 1
    y = np.linspace(_LEAST, _MOST, count) * math.log(10) + log_unit
    half = float(y[1] - y[0]) / 2
    nodes = (y[:-1, None] + half) + half * _POINTS
    log_f = log_density(np.exp(nodes).ravel()).reshape(nodes.shape)
    with np.errstate(over="ignore", under="ignore"):
        mass = half * (np.exp(log_f + nodes) @ _WEIGHTS)
        inside = np.exp(y[0]) / (2 * unit) + np.r_[0.0, np.cumsum(mass)]
        outside = np.r_[np.cumsum(mass[::-1])[::-1], 0.0]
    total = 2 * float(inside[-1])
    if not abs(total - 1) <= _MASS_ERROR:
        raise ValueError(
            "`log_prob` must be that of a density which integrates to 1, and "
            f"which is smooth but at 0. Received: one of {total!r}."
        )
    known = outside > np.finfo(np.float64).tiny / np.finfo(np.float64).eps
    if not math.log(2 * float(outside[known][-1])) <= _NO_TAIL:
        raise ValueError(
            "`log_prob` must be that of a density whose tails fall at least "
            "as `x^(-1.6)`. Received: heavier tails, from which a draw could "
            "be infinite."
        )
    y, tail = y[known], outside[known] / (total / 2) / 2
    middle = np.minimum(2 * inside[known] / total, 0.75)
    w = np.where(tail > 0.25, -np.log1p(-middle), -np.log(2 * tail))
    # d log(w) / d log(x), where dw = f(x) dx / tail.
    slope = np.exp(y + log_density(np.exp(y)) - np.log(tail) - np.log(w))
    t = np.log(w)
    quantiles = scipy.interpolate.CubicHermiteSpline(t, y, 1 / slope)
    knots = np.linspace(_FIRST, _LAST, round((_LAST - _FIRST) * _PER_UNIT) + 1)
    return TabulatedLaw(
        unit=unit,
        variance=_variance(nodes, log_f, half),
        fisher_information=_fisher_information(nodes, log_f, half, log_unit),
        draws=_curve(knots, quantiles(knots), quantiles(knots, 1)),
        tails=_curve(y, t, slope),
        quantiles=quantiles,
    )


def _curve(x: Array, value: Array, slope: Array) -> Curve:
    """Returns the cubic Hermite polynomials between equal steps."""
    step = float(x[1] - x[0])
    left, jump = value[:-1], np.diff(value)
    first, last = slope[:-1] * step, slope[1:] * step
    bends = [3 * jump - 2 * first - last, first + last - 2 * jump]
    return Curve(float(x[0]), step, np.stack([left, first, *bends], axis=1))


def _variance(nodes: Array, log_f: Array, half: float) -> float:
    with np.errstate(over="ignore", under="ignore"):
        terms = np.exp(log_f + 3 * nodes)
    total = 2 * half * float(np.sum(terms @ _WEIGHTS))
    is_finite = float(terms[-1, -1]) < _NEGLIGIBLE * total < math.inf
    return total if is_finite else math.inf


def _fisher_information(
    nodes: Array, log_f: Array, half: float, log_unit: float
) -> float:
    """Returns `2 int (d log f / dx)^2 f dx`, with what is near 0 bounded."""
    first = int(np.searchsorted(nodes[:, 0], math.log(_FISHER_FROM) + log_unit))
    positive = np.asarray(np.isfinite(log_f).all(axis=1))
    positive[:first] = False
    falls = log_f[positive] @ _SLOPES.T / half
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        height = np.exp(log_f[positive] - nodes[positive])
        terms = np.where(height > 0, falls**2 * height, 0.0)
    total = float(np.sum(terms @ _WEIGHTS)) * half
    decades = 3
    near, next_ = terms[0, 0], terms[decades * _PER_DECADE, 0]
    if near <= _NEGLIGIBLE * total:
        return 2 * total
    power = math.log(next_ / near) / (decades * math.log(10))
    if not power >= _LEAST_POWER:
        return math.inf
    return 2 * (total + float(near) / power)
