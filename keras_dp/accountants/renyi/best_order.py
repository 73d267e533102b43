"""The best Rényi order, searched among all real ones."""

from collections.abc import Callable

import numpy as np

from keras_dp.accountants.arrays import Array

# Octaves of `order - 1` that are looked at first, and how far to go beyond.
_FIRST_OCTAVE, _LAST_OCTAVE = -6, 10
_LOWEST_OCTAVE, _HIGHEST_OCTAVE = -60, 30
_EXTENSION = 8
# Each zoom shrinks the interval by 5.5: five leave 0.0004 octaves, within
# which a function is constant to 1e-8 of its curvature.
_ZOOMS = 5
_POINTS = 10


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
        octaves, values = _with(octaves, values, more, objective)
    for _ in range(_ZOOMS):
        best = int(np.argmin(values))
        low = octaves[max(best - 1, 0)]
        high = octaves[min(best + 1, octaves.size - 1)]
        inner = np.linspace(low, high, _POINTS + 2)[1:-1]
        octaves, values = _with(octaves, values, inner, objective)
    return float(values.min())


def _with(
    octaves: Array,
    values: Array,
    more: Array,
    objective: Callable[[Array], Array],
) -> tuple[Array, Array]:
    """Returns `octaves` and `values`, extended by `more`, in rising order."""
    octaves = np.concatenate([octaves, more])
    values = np.concatenate([values, objective(2.0**more)])
    order = np.argsort(octaves, kind="stable")
    return octaves[order], values[order]


def _beyond(octaves: Array, best: int) -> Array:
    """Returns octaves past the end, if the least value was at an end."""
    if best == 0:
        lowest = max(octaves[0] - _EXTENSION, _LOWEST_OCTAVE)
        return np.arange(lowest, octaves[0])
    if best == octaves.size - 1:
        highest = min(octaves[-1] + _EXTENSION, _HIGHEST_OCTAVE)
        return np.arange(octaves[-1] + 1, highest + 1)
    return np.empty(0)
