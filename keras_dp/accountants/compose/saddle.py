"""Chernoff bounds by moments, and the tilt at which each is best.

See `loss.log_moments.conversion`.
"""

import math
from collections.abc import Callable

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.compose.composition import (
    Composition,
    log_moments,
    moments,
)
from keras_dp.accountants.loss.log_moments import conversion
from keras_dp.errors import TooSlowError

# Tilts that are looked at together, in units of the best one so far.
_OCTAVES = 2.0 ** np.linspace(-2, 2, 9)
_LEAST_TILT, _LARGEST_TILT = 2.0**-40, 2.0**40
# Moments are rounded up by this, a thousand times their error.
_MOMENT_ERROR = 1e-9


def largest_epsilon(
    composition: Composition, log_delta: float
) -> tuple[float, float]:
    """Returns the best tilt for `log_delta`, and its bound on epsilon.

    Raises:
        TooSlowError: A moment has no quadrature.
    """
    one = moments(composition, np.array([1.0]))
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
