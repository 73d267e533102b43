"""Functions that noise families share: arguments, tails and rounding."""

import math
from typing import Any

import numpy as np

from keras_dp.ledger.events.noise_distribution import Array

# The square of a larger number overflows, or absorbs the 1 that is added to it.
_LARGE = 1e100
# From here on the series below is exact to rounding.
_ASYMPTOTIC = 100.0


def standardized(x: Any, scale: float) -> Array:
    """Returns `x / scale`, infinite where the quotient is above all floats."""
    with np.errstate(over="ignore"):
        return np.asarray(np.asarray(x, np.float64) / scale)


def probabilities(probability: Any) -> Array:
    """Returns probabilities as an array; refuses those outside [0, 1]."""
    each = np.asarray(probability, np.float64)
    if not ((each >= 0) & (each <= 1)).all():
        raise ValueError(
            "`probability` must be in [0, 1]. Received: probabilities in "
            f"[{np.min(each)}, {np.max(each)}]."
        )
    return each


def stretched(quantiles: Array, scale: float) -> Array:
    """Returns `scale * quantiles`, infinite where that is above all floats."""
    with np.errstate(over="ignore"):
        return np.asarray(scale * quantiles)


def two_sided(z: Array, tail: Array) -> Array:
    """Returns the cdf at `z`, from the probability `tail` of noise > `|z|`."""
    return np.asarray(np.where(z < 0, tail, 1 - tail))


def log_one_plus_square(x: Any, scale: float, unit: float) -> Array:
    """Returns `log(1 + (x / (scale unit))^2)`, however large `x` is."""
    w = np.abs(standardized(x, scale)) / unit
    square = np.square(np.minimum(w, _LARGE))
    size = np.maximum(np.abs(np.asarray(x, np.float64)), math.ulp(0.0))
    far = 2 * (np.log(size) - math.log(scale) - math.log(unit))
    return np.asarray(np.where(w < _LARGE, np.log1p(square), far))


def log_gamma_half_step(a: float) -> float:
    """Returns `log(gamma(a + 1/2) / gamma(a))`, without cancellation."""
    if a < _ASYMPTOTIC:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    r = 1 / a  # Stirling's series.
    return 0.5 * math.log(a) - r / 8 + r**3 / 192 - r**5 / 640
