"""The best Rényi order, searched among all real ones."""

from collections.abc import Callable

import numpy as np

from keras_dp.accountants.arrays import Array

# Octaves of `order - 1` that are tried first, the outermost ones, and how many
# are added at once. Large orders take long, so few are tried in vain.
_FIRST_OCTAVE, _LAST_OCTAVE = -6, 4
_LOWEST_OCTAVE, _HIGHEST_OCTAVE = -60, 30
_EXTENSION = 4
# Three zooms leave 0.003 octaves, on which the function is smooth; the parabola
# through the best three points then finds the minimum.
_ZOOMS = 3
_POINTS = 16


def least(objective: Callable[[Array], Array]) -> float:
    """Returns the least value of `objective` over all orders.

    Every value is a valid bound, so that the search decides how tight the
    result is, never whether it is true. The log moment is convex in the
    order. So is what the improved conversion adds to it, `(a-1) log(a-1) -
    a log a`. Delta is the exponential of a convex function, then, and epsilon
    a convex function over `a - 1`: both have one minimum. It is bracketed by
    octaves, as far out as need be, and zoomed in on.

    Args:
        objective: From `order - 1`, shape `[n]`, to the bounds, shape `[n]`.
    """
    octaves = np.arange(_FIRST_OCTAVE, _LAST_OCTAVE + 1.0)
    values = objective(2.0**octaves)
    while (more := _beyond(octaves, int(np.argmin(values)))).size:
        octaves = np.concatenate([octaves, more])
        values = np.concatenate([values, objective(2.0**more)])
        order = np.argsort(octaves, kind="stable")
        octaves, values = octaves[order], values[order]
    least_value = float(values.min())
    for _ in range(_ZOOMS):
        best = int(np.argmin(values))
        low = octaves[max(best - 1, 0)]
        high = octaves[min(best + 1, octaves.size - 1)]
        octaves = np.linspace(low, high, _POINTS)
        values = objective(2.0**octaves)
        least_value = min(least_value, float(values.min()))
    last = objective(2.0 ** _vertex(octaves, values))
    return min(least_value, float(last[0]))


def _vertex(octaves: Array, values: Array) -> Array:
    """Returns where the parabola through the best three points is least."""
    best = min(max(int(np.argmin(values)), 1), octaves.size - 2)
    near = slice(best - 1, best + 2)
    x = octaves[near] - octaves[best]
    with np.errstate(divide="ignore", invalid="ignore"):
        y = values[near] - values[best]  # NaN if all are infinite.
        numerator = y[2] * x[0] ** 2 - y[0] * x[2] ** 2
        vertex = numerator / (y[2] * x[0] - y[0] * x[2]) / 2
    if not np.isfinite(vertex):  # Constant, or next to an infinite value.
        vertex = 0.0
    return np.array([octaves[best] + min(max(vertex, x[0]), x[2])])


def _beyond(octaves: Array, best: int) -> Array:
    """Returns octaves past the end, if the least value was at an end."""
    if best == 0:
        lowest = max(octaves[0] - _EXTENSION, _LOWEST_OCTAVE)
        return np.arange(lowest, octaves[0])
    if best == octaves.size - 1:
        highest = min(octaves[-1] + _EXTENSION, _HIGHEST_OCTAVE)
        return np.arange(octaves[-1] + 1, highest + 1)
    return np.empty(0)
