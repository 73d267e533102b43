"""Arrays that start where TensorFlow may use them without a copy."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

# Eigen asks for it where vectors are widest (AVX-512); the buffers of an
# ordinary array start anywhere at a multiple of 16.
ALIGNMENT_BYTES = 64


def aligned_empty(
    shape: tuple[int, ...], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Returns a new array, not initialized.

    >>> aligned_empty((3, 2), np.dtype("f4")).ctypes.data % 64
    0
    """
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    raw = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    array: npt.NDArray[Any] = raw[start : start + size].view(dtype)
    return array.reshape(shape)
