"""Pairs of Gaussian mixtures, and the integrand of their Rényi divergence.

The pair `P = (1-q) N(0, z^2) + q N(1, z^2)`, `Q = (1-q) N(0, z^2) +
q N(m, z^2)` with `m = 0` or `-1`, measured in the noise: `x ~ N(0, 1)` has
`P/N = u = 1 - q + q exp(x/z - 1/(2 z^2))`, and `Q/N = v` likewise. Rényi
divergence of order `a` is `log(1 + I) / (a - 1)` with

    I = E_x[u^a v^(1-a)] - 1 = E_x[v F(log(u/v))],
    F(y) = e^(a y) - 1 - a (e^y - 1) >= 0,

as `E[u] = E[v] = 1`. Nothing cancels in the second form, so that `I` keeps its
relative precision where it is far below the spacing of floats at 1.
"""

import dataclasses
import math
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import special

from keras_dp.accountants.arrays import Array

# exp() of it is finite, and of nothing much larger.
_EXPONENT = 600.0
# Below it the power series of F is used; 15 terms reach 1e-17 of the first.
_SMALL_EXPONENT = 0.5
_SERIES_TERMS = 15


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """One pair and one order a row; the arrays have the same shape.

    Attributes:
        probability: `q`, in (0, 1).
        noise_multiplier: `z`, > 0.
        excess: The order minus one, > 0.
        other_mean: `m`: 0 if neighbours lack the record, -1 if they hold its
            opposite. The same for all rows.
    """

    probability: Array
    noise_multiplier: Array
    excess: Array
    other_mean: float

    def take(self, rows: NDArray[np.intp]) -> Self:
        """Returns some rows, as columns to be broadcast against points."""
        return dataclasses.replace(
            self,
            probability=self.probability[rows, None],
            noise_multiplier=self.noise_multiplier[rows, None],
            excess=self.excess[rows, None],
        )

    def log_integrand(self, x: Array) -> Array:
        """Returns the log of `v F(log(u/v)) exp(-x^2/2)`."""
        log_u, log_v = self._log_ratio(x, 1.0), self._log_ratio(x, -1.0)
        return log_v - x * x / 2 + log_excess_power(self.excess, log_u - log_v)

    def envelope(self, x: Array) -> Array:
        """Returns the log of `u^a v^(1-a) exp(-x^2/2)`.

        It bounds the integrand where `u >= v`, that is for larger `x`.
        """
        log_u, log_v = self._log_ratio(x, 1.0), self._log_ratio(x, -1.0)
        return log_u - x * x / 2 + self.excess * (log_u - log_v)

    def envelope_slope(self, x: Array) -> Array:
        """Returns the derivative of the envelope."""
        pull = (1 + self.excess) * self._weight(x, 1.0)
        pull = pull - self.other_mean * self.excess * self._weight(x, -1.0)
        return np.asarray(pull / self.noise_multiplier - x)

    def envelope_curvature(self, x: Array) -> Array:
        """Returns the second derivative of the envelope."""
        own, other = self._weight(x, 1.0), self._weight(x, -1.0)
        bend = (1 + self.excess) * own * (1 - own)
        bend = bend - self.excess * other * (1 - other)
        return np.asarray(bend / self.noise_multiplier**2 - 1)

    def log_odds(self) -> Array:
        """Returns `log(q / (1-q))`."""
        return np.asarray(
            np.log(self.probability) - np.log1p(-self.probability)
        )

    def _log_ratio(self, x: Array, side: float) -> Array:
        """Returns `log u` for side 1, `log v` for side -1."""
        if side == -1 and self.other_mean == 0:
            return np.zeros_like(x)
        q, z = self.probability, self.noise_multiplier
        w = side * x / z - 0.5 / z**2
        # u - 1 keeps its digits near 0; the two terms of u do elsewhere.
        change = q * np.expm1(np.minimum(w, _EXPONENT))
        small = (change > -0.5) & (w < _EXPONENT)
        result = np.log1p(change)
        if not small.all():
            terms = np.logaddexp(np.log1p(-q), np.log(q) + w)
            result = np.where(small, result, terms)
        return np.asarray(result)

    def _weight(self, x: Array, side: float) -> Array:
        """Returns the share of the second component in `u` or `v`."""
        if side == -1 and self.other_mean == 0:
            return np.zeros_like(x)
        z = self.noise_multiplier
        w = side * x / z - 0.5 / z**2
        return np.asarray(special.expit(w + self.log_odds()))


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
