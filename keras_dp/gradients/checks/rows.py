"""Compares two tensors row by row."""

from typing import Any

import numpy as np
import tensorflow as tf

# Differences of gradients below this are rounding, whatever their size.
_NEGLIGIBLE = 1e-7


def differing_rows(
    one: Any, two: Any, batch: int, tolerance: float
) -> np.ndarray:
    """Returns which rows differ, relative to their size and to that of all.

    A tensor that has no axis of the batch belongs to every row.

    Args:
        one: Any value; what is not a tensor of numbers does not differ.
        two: A value like `one`. Rows of `one` that are not finite are skipped.
        batch: Number of rows.
        tolerance: See `Trial.tolerance`.

    Returns:
        Shape `[batch]`.
    """
    if not _has_numbers(one) or not _has_numbers(two):
        return np.zeros(batch, bool)
    if one.shape != two.shape:
        return np.ones(batch, bool)
    one, two = (_rows(tensor, batch) for tensor in (one, two))
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = np.linalg.norm(one, axis=1)
    finite = np.isfinite(sizes)
    if not finite.any():
        return np.zeros(batch, bool)
    with np.errstate(over="ignore", invalid="ignore"):  # Infinity less it.
        error = np.linalg.norm(one - two, axis=1)
    limit = tolerance * (sizes + sizes[finite].mean()) + _NEGLIGIBLE
    # Negated, so that NaN differs.
    return np.broadcast_to(finite & ~(error <= limit), [batch])


def has_rows(value: Any, batch: int) -> bool:
    """Whether a value is a tensor with the batch as its first axis."""
    if not tf.is_tensor(value):
        return False
    return bool(value.shape.rank and value.shape[0] == batch)


def _has_numbers(value: Any) -> bool:
    if not tf.is_tensor(value):
        return False
    dtype = value.dtype
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)


def _rows(tensor: tf.Tensor, batch: int) -> np.ndarray:
    rows = batch if has_rows(tensor, batch) else 1
    return tf.reshape(tf.cast(tensor, tf.float64), [rows, -1]).numpy()
