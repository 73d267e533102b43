"""Array types of the accountants, and functions that NumPy lacks."""

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Complex: TypeAlias = NDArray[np.complex128]
# A real or complex array.
Points: TypeAlias = NDArray[Any]

# exp(EXPONENT) is finite, and so are its products with all numbers in use:
# float64 ends at exp(709).
EXPONENT = 600.0
# Distance of 1 from the next float64.
EPSILON = float(np.finfo(np.float64).eps)
# exp(_NOTHING) is 0, also for a complex number with this real part.
_NOTHING = -750.0
# Up to this |1 + z|^2 - 1 the modulus is computed from 1 + z, above it from z.
_SMALL_SIZE = -0.75
# Below this size a series of `e^x - 1 - x` with this many terms has all digits.
_SMALL, _TERMS = 0.2, 12


def log1p(z: Points) -> Points:
    """Returns `log(1 + z)`, the principal branch for complex numbers.

    The relative error is small, also where `z` or `1 + z` is near 0; NumPy's
    function is not as accurate for complex numbers. For complex numbers, the
    log of 0 is -750.

    >>> log1p(np.array([1e-20 + 1e-20j])).tolist()
    [(1e-20+1e-20j)]
    """
    if not np.iscomplexobj(z):
        return np.log1p(z)
    x, y = z.real, z.imag
    is_near = np.maximum(np.abs(x), np.abs(y)) < 1
    near_x, near_y = np.where(is_near, x, 0.0), np.where(is_near, y, 0.0)
    change = 2 * near_x + near_x**2 + near_y**2
    is_near &= change > _SMALL_SIZE
    near = np.log1p(np.maximum(change, _SMALL_SIZE)) / 2
    with np.errstate(divide="ignore"):  # log(0) becomes _NOTHING.
        far = np.log(np.hypot(1 + x, y))
    sizes = np.where(is_near, near, far)
    return np.asarray(np.maximum(sizes, _NOTHING) + 1j * np.arctan2(y, 1 + x))


def expm1_less(x: Points) -> Points:
    """Returns `e^x - 1 - x`, relatively precise also next to 0.

    >>> expm1_less(np.array([1e-20])).tolist()
    [5e-41]
    """
    result = np.expm1(x) - x
    small = np.abs(x) < _SMALL
    near = x[small]
    series = np.zeros_like(near)
    for k in range(_TERMS, 1, -1):
        series *= near
        series += 1 / math.factorial(k)
    result[small] = series * near * near
    return np.asarray(result)
