"""Laplace transforms of the privacy loss of shifted noise.

Let `y = log(z(x-v) / z(x))` for a symmetric density `z`. The measure `H` with
density `sqrt(z(x) z(x-v))` is halfway between the two laws: `y` is symmetric
under it, as `x -> v - x` maps `y` to `-y`. Its transform at `u` is

    E_H[e^(u y)] = 1 + 2 int sinh((u+1/2) y/2) sinh((u-1/2) y/2) dH,

1 at `u = 1/2` and `-1/2`, which are the two laws. Nothing cancels in it for
small `v`, so that its logarithm can be taken 10^7 times.
"""

import functools
import itertools
import math

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray
from scipy import special

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.encoded.coordinates import Coordinates, Shift
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import NoiseDistribution

Complex = NDArray[np.complex128]

_POINTS, _WEIGHTS = legendre.leggauss(16)
# Panels are octaves or halves of them, in scales; the mass of the heaviest
# tails beyond the last, that of a Cauchy law, is 1e-20.
_EDGES = np.concatenate([np.arange(0.0, 2, 0.25), 2.0 ** np.arange(1, 67, 0.5)])
# A panel of 16 points is exact to rounding for waves of this phase.
_PHASE = 16.0
# Below it the power series is used; 21 terms reach 1e-17, and the largest is
# e^6 times the result.
_SMALL, _TERMS = 6.0, 21
# exp() of it is finite, and so is its square.
MOST_EXPONENT = 300.0
# Differences of log-densities lose more than 1e-9 for smaller shifts.
_LEAST_SHIFT = 1e-7
# The mass of the noise that is left out, but for the heaviest tails.
_LEAST_MASS = 1e-40
# Next to nothing, as a share of all.
_NEGLIGIBLE = 1e-22
# What the integrals of smooth densities are good to, a hundred times over.
_TOLERANCE = 1e-10
# In place of 0, which a characteristic function may pass.
_LEAST_SIZE = 1e-200
# Products of points and frequencies at once, which bounds the memory.
_BLOCK = 2**21


class Transform:
    """The logarithm of `E_H[e^(u y)]` of a whole round, `y` the sum.

    Attributes:
        largest_loss: Bound on `|y|` that integrals go to.
        relative_error: Of the logarithm, from differences of log-densities;
            ten times what is measured against 40 digits.
    """

    __slots__ = ("_normal", "_parts", "largest_loss", "relative_error")

    def __init__(self, shift: Shift) -> None:
        self._normal = shift.normal**2
        self._parts = [_Part(each) for each in shift.coordinates]
        total = math.fsum(part.count * part.most for part in self._parts)
        self.largest_loss = math.inf if shift.normal else total
        squares = np.array([part.square for part in self._parts] + [0.0])
        shifts = np.array([part.shift for part in self._parts] + [1.0])
        small = squares / np.maximum(shifts, _LEAST_SHIFT)
        share = small.sum() / (squares.sum() + self._normal)
        self.relative_error = 1e-14 + 1e-15 * float(share)

    @property
    def most_tilt(self) -> float:
        """The largest real part that can be asked for."""
        most = max((part.most for part in self._parts), default=0.0)
        return MOST_EXPONENT / most if most else math.inf

    def log(self, u: Complex) -> Complex:
        """Returns the logarithm, up to a multiple of `2 pi i`."""
        total = self._normal / 2 * (u * u - 0.25)
        for part in self._parts:
            total = total + part.count * _log1p(part.excess(u))
        return np.asarray(total)

    def moments(self, u: float) -> tuple[float, float, float]:
        """Returns the logarithm and its two derivatives at a real `u`."""
        log = self._normal / 2 * (u * u - 0.25)
        mean, variance = self._normal * u, self._normal
        for part in self._parts:
            change, slope, bend = part.derivatives(u)
            slope, bend = slope / (1 + change), bend / (1 + change)
            log += part.count * math.log1p(change)
            mean += part.count * slope
            variance += part.count * (bend - slope * slope)
        return log, mean, variance


class _Part:
    """The transform of one of some equal coordinates, less 1."""

    __slots__ = (
        "_series",
        "coordinates",
        "count",
        "most",
        "shift",
        "square",
    )

    def __init__(self, coordinates: Coordinates) -> None:
        self.coordinates = coordinates
        self.count = coordinates.count
        self.shift = coordinates.shift
        y, weight = _rule(coordinates.noise, coordinates.shift, 1.0)
        self.most = min(float(y.max()), coordinates.largest_loss)
        # E[(y/most)^(2j)] most^(2j) / (2j)!, scaled to stay in range.
        j = np.arange(1, _TERMS + 1)
        powers = np.cumprod(
            np.broadcast_to(np.square(y / self.most), (_TERMS, y.size)), axis=0
        )
        self._series = powers @ weight / special.factorial(2 * j)
        self.square = self.count * float(np.square(y) @ weight)

    def excess(self, u: Complex) -> Complex:
        size = float(np.abs(u).max())
        if size * self.most <= _SMALL:
            square, base = np.square(u * self.most), (self.most / 2) ** 2
            return _series_difference(self._series, square, base)
        y, weight = _rule(
            self.coordinates.noise,
            self.shift,
            2.0 ** math.ceil(math.log2(size)),
        )
        result = np.empty(u.shape, np.complex128)
        rows = max(1, _BLOCK // y.size)
        for start in range(0, u.size, rows):
            part = u[start : start + rows, None]
            product = np.sinh((part + 0.5) * (y / 2))
            product *= np.sinh((part - 0.5) * (y / 2))
            result[start : start + rows] = 2 * (product @ weight)
        return result

    def derivatives(self, u: float) -> tuple[float, float, float]:
        y, weight = _rule(self.coordinates.noise, self.shift, 1.0)
        change = 2 * np.sinh((u + 0.5) * y / 2) * np.sinh((u - 0.5) * y / 2)
        slope, bend = y * np.sinh(u * y), y * y * np.cosh(u * y)
        return (
            float(weight @ change),
            float(weight @ slope),
            float(weight @ bend),
        )


def _series_difference(series: Array, square: Complex, base: float) -> Complex:
    """Returns `sum_j series_j (square^j - base^j)`.

    By Horner's rule for the quotient by `square - base`.
    """
    quotient = np.zeros_like(square)
    value = 0.0
    for coefficient in series[::-1]:
        value = value * base + coefficient
        quotient = quotient * square + value
    return np.asarray(quotient * (square - base))


def _log1p(x: Complex) -> Complex:
    """Returns `log(1 + x)`, relatively precise for small `x` too."""
    real, imaginary = x.real, x.imag
    square = real * (2 + real) + imaginary * imaginary
    far = np.log(np.maximum(np.hypot(1 + real, imaginary), _LEAST_SIZE))
    log = np.where(square > -0.5, np.log1p(np.maximum(square, -0.5)) / 2, far)
    return np.asarray(log + 1j * np.arctan2(imaginary, 1 + real))


@functools.lru_cache(maxsize=512)
def _rule(
    noise: NoiseDistribution, shift: float, frequency: float
) -> tuple[Array, Array]:
    """Returns points `y >= 0` and weights of `H`, for both signs together.

    Args:
        noise: Of scale 1.
        shift: > 0.
        frequency: Largest size of a `u` to be integrated with.
    """
    if shift < _LEAST_SHIFT:
        y, weight = _rule(noise, _LEAST_SHIFT, 1.0)
        return y * (shift / _LEAST_SHIFT), weight
    inside = np.unique(np.minimum(_EDGES, shift / 2))
    panels = [(-1.0, a, b) for a, b in itertools.pairwise(inside)]
    outside = _EDGES[max(-2 * noise.quantile(_LEAST_MASS), 2.0) >= _EDGES]
    panels += [(1.0, a, b) for a, b in itertools.pairwise(outside)]
    y, weight = _refined(noise, shift, frequency, np.array(panels))
    # Both laws have mass 1.
    mass = float(weight @ np.cosh(y / 2))
    if not abs(mass - 1) <= _TOLERANCE:
        raise UnsupportedEventError(
            "`noise` must have a density that is smooth but at 0. Received: "
            f"noise={noise!r}, whose mass between points is missed by "
            f"{mass - 1:.2g}."
        )
    return y, weight


def _refined(
    noise: NoiseDistribution, shift: float, frequency: float, panels: Array
) -> tuple[Array, Array]:
    side, start, end = panels.T
    ends = _loss(noise, shift, side, start), _loss(noise, shift, side, end)
    middle = _loss(noise, shift, side, (start + end) / 2)
    range_ = np.maximum(*(np.abs(each - middle) for each in ends)) * 2
    pieces = np.maximum(np.ceil(range_ * frequency / _PHASE), 1).astype(int)
    which = np.repeat(np.arange(side.size), pieces)
    index = np.arange(which.size) - np.repeat(
        np.cumsum(pieces) - pieces, pieces
    )
    width = ((end - start) / pieces)[which]
    left = start[which] + index * width
    distance = left[:, None] + width[:, None] * (1 + _POINTS) / 2
    sides = side[which][:, None]
    near = noise.log_density(distance)
    far = noise.log_density(shift + sides * distance)
    y = np.maximum(near - far, 0.0)
    weight = np.exp((near + far) / 2) * (width[:, None] / 2 * _WEIGHTS) * 2
    kept = weight * np.cosh(y / 2) > _NEGLIGIBLE * width[:, None] / (
        1 + distance
    )
    return y[kept], weight[kept]


def _loss(
    noise: NoiseDistribution, shift: float, side: Array, distance: Array
) -> Array:
    """Returns `y` where `x - shift` is `side` times `distance`."""
    near = noise.log_density(distance)
    return np.asarray(near - noise.log_density(shift + side * distance))
