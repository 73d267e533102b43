"""Bounds by moments: Chernoff's, with the best tilt, and one by the variance.

For Chernoff's bounds see `loss.loss_distribution.conversion`. They are far off
where epsilon is tiny and the losses have a long tail. There the variance `v` of
the likelihood ratio `L` under `Q`, whose mean is 1, bounds more. With
`x = e^epsilon - 1`,

    delta = E_Q[(L - 1 - x)+] <= (sqrt(v + x^2) - x) / 2,

because `y+ = (|y| + y) / 2` and the mean of `|L - 1 - x|` is at most the root
of the mean of its square (Scarf 1958). `v + 1 = E_Q[L^2] = e^K(1)`.
"""

import math
from collections.abc import Callable

import numpy as np

from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.compose.composition import (
    Composition,
    log_moments,
    moments_of_sum,
)
from keras_dp.accountants.loss.loss_distribution import conversion
from keras_dp.errors import TooSlowError

# Each step computes the bound at these tilts, in units of the best one so far.
_OCTAVES = 2.0 ** np.linspace(-2, 2, 9)
_LEAST_TILT, _LARGEST_TILT = 2.0**-40, 2.0**40
# Moments are rounded up by this share, a thousand times their error.
_MOMENT_ERROR = 1e-9


def largest_epsilon(
    composition: Composition, log_delta: float
) -> tuple[float, float]:
    """Returns the best tilt for `log_delta`, and its bound on epsilon.

    Raises:
        TooSlowError: A moment has no quadrature.
    """
    one = moments_of_sum(composition, np.array([1.0]))
    start = math.sqrt(2 * (1 - log_delta) / float(one.variance[0]))

    def bounds(tilts: Array, logs: Array) -> Array:
        return np.asarray((logs - log_delta + conversion(tilts)) / tilts)

    tilt, epsilon = _best(composition, bounds, start)
    upper = epsilon * (1 + _MOMENT_ERROR)
    return tilt, max(0.0, upper)


def largest_log_delta(
    composition: Composition, epsilon: float
) -> tuple[float, float]:
    """Returns the best tilt for `epsilon`, and its bound on log delta.

    Raises:
        TooSlowError: A moment has no quadrature.
    """

    def bounds(tilts: Array, logs: Array) -> Array:
        return np.asarray(logs - tilts * epsilon + conversion(tilts))

    tilt, log_delta = _best(composition, bounds, 1.0)
    scale = (
        abs(log_delta) + 2 * tilt * epsilon - float(conversion(np.array(tilt)))
    )
    return tilt, min(0.0, log_delta + _MOMENT_ERROR * scale)


def stddev(composition: Composition) -> float:
    """Returns that of the likelihood ratio, which small losses have too.

    Raises:
        TooSlowError: The moment has no quadrature.
    """
    return math.sqrt(_variance(composition))


def variance_epsilon(composition: Composition, log_delta: float) -> float:
    """Returns the bound on epsilon by the variance, `inf` if it says nothing.

    Raises:
        TooSlowError: The moment has no quadrature.
    """
    delta = math.exp(log_delta)
    if not delta:
        return math.inf
    excess = _variance(composition) / (4 * delta) * (1 + _MOMENT_ERROR) - delta
    return math.log1p(max(excess, 0.0)) * (1 + _MOMENT_ERROR)


def variance_log_delta(composition: Composition, epsilon: float) -> float:
    """Returns the bound on log delta by the variance.

    Raises:
        TooSlowError: The moment has no quadrature.
    """
    variance = _variance(composition)
    x = math.expm1(min(epsilon, EXPONENT))
    if not 0 < variance < math.inf:
        return 0.0
    # In this form nothing cancels, and no square overflows.
    most = variance / (2 * (math.hypot(math.sqrt(variance), x) + x))
    return min(0.0, math.log(most) + _MOMENT_ERROR) if most else 0.0


def _variance(composition: Composition) -> float:
    """Returns the variance of the likelihood ratio, rounded up."""
    logs, errors = log_moments(composition, np.array([1.0]))
    most = float(logs[0] + errors[0])
    return (
        math.expm1(most) * (1 + _MOMENT_ERROR) if most < EXPONENT else math.inf
    )


def _best(
    composition: Composition,
    bounds: Callable[[Array, Array], Array],
    start: float,
) -> tuple[float, float]:
    """Returns the tilt of the least bound, and that bound."""
    tilt, highest = start, _LARGEST_TILT
    while True:
        tilts = tilt * _OCTAVES
        try:
            logs, errors = log_moments(composition, tilts)
        except TooSlowError:  # Not at such a tilt.
            highest = tilt
            tilt /= _OCTAVES[-1] ** 2
            if tilt < _LEAST_TILT:
                raise
            continue
        found = bounds(tilts, logs + errors)
        best = int(np.argmin(found))
        tilt = float(tilts[best])
        is_inside = 0 < best < tilts.size - 1
        if is_inside or not _LEAST_TILT < tilt < highest / _OCTAVES[-1]:
            return tilt, float(found[best])
