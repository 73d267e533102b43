"""Checks the public ranges to which features are clipped."""

from typing import Any

import numpy as np

# With these limits, squares of ranges and least variances fit float32.
_LARGEST = 1e18
_SHORTEST = 1e-12


def checked_range(bounds: Any, *, most_axes: int = 1) -> tuple[Any, Any]:
    """Returns a range whose ends are floats, or tuples of floats.

    Args:
        bounds: A pair (low, high) of numbers or sequences of numbers.
        most_axes: 0 if only numbers are allowed, 1 if sequences are too.

    Raises:
        ValueError: `bounds` is not such a pair, or low is not below high.

    >>> checked_range((0, [1, 2]))
    (0.0, (1.0, 2.0))
    """
    try:
        low, high = (np.asarray(bound, np.float64) for bound in bounds)
        is_range = (
            max(low.ndim, high.ndim) <= most_axes
            and np.all(np.abs(low) <= _LARGEST)
            and np.all(np.abs(high) <= _LARGEST)
            and np.all(high - low >= _SHORTEST)
        )
    except (TypeError, ValueError):
        is_range = False
    if not is_range:
        each = " or a sequence with one for each feature" if most_axes else ""
        raise ValueError(
            f"`bounds` must be a pair (low, high) with low < high, each a "
            f"number{each}. Received: bounds={bounds!r}. Give public ends of "
            f"at most {_LARGEST:g}, at least {_SHORTEST:g} apart."
        )
    ends = (each.tolist() for each in (low, high))
    first, last = (tuple(e) if isinstance(e, list) else e for e in ends)
    return first, last
