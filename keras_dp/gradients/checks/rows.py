"""Compares two tensors row by row, by digests of the rows.

A digest holds some random projections of a row. If two rows differ by a vector
d, each of their projections differs by the norm of d times a random number of
about 1. Digests take little memory, so that the tensors of a pass can be freed
while it runs.
"""

import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf

# Differences of gradients below this are rounding, whatever their size.
_NEGLIGIBLE = 1e-7
# With so many directions, a difference of 30 times the tolerance is overlooked
# with a probability of about 1e-7 to 1e-5, and one of the size of the row
# practically never.
_DIRECTIONS = 8
# Letters for the axes of a row, except the last.
_AXES = "abcefghijklm"


def digest(value: Any, batch: int) -> tf.Tensor | None:
    """Returns the digest of each row, `[batch, directions]`.

    The digest of a row that is not finite is not finite.

    Args:
        value: A tensor of numbers. If its first axis is not the batch, it is
            one row. Any other value has no digest.
        batch: The number of rows.
    """
    if not _has_numbers(value):
        return None
    if value.dtype != tf.float64:
        value = tf.cast(value, tf.float32)
    if not has_rows(value, batch):
        value = value[tf.newaxis]
    if not value.shape.num_elements():
        return tf.zeros([value.shape[0], _DIRECTIONS])
    if value.shape.rank == 1:
        value = value[:, tf.newaxis]
    # Drawing a number for each entry of a row would take longer than the pass.
    # `tf.einsum` would add five times as many operations to the graph.
    *others, width = value.shape[1:]
    axes = _AXES[: len(others)]
    inner = tf.constant(_directions(width, 0), value.dtype)
    along = tf.raw_ops.Einsum(
        inputs=[value, inner], equation=f"r{axes}w,wd->r{axes}d"
    )
    if not others:
        return along
    outer = _directions(math.prod(others), 1).reshape([*others, _DIRECTIONS])
    return tf.raw_ops.Einsum(
        inputs=[along, tf.constant(outer, value.dtype)],
        equation=f"r{axes}d,{axes}d->rd",
    )


@functools.lru_cache(64)
def _directions(length: int, axis: int) -> np.ndarray:
    normal = np.random.Generator(np.random.Philox([axis, length]))
    return normal.standard_normal((length, _DIRECTIONS), np.float32)


def digests_differ(
    one: tf.Tensor, two: tf.Tensor, kept: np.ndarray, tolerance: float
) -> bool:
    """Whether a row differs, relative to its size plus the mean of all sizes.

    A tensor without the batch axis belongs to every row.

    Args:
        one: A digest. Its rows that are not finite are skipped.
        two: Another digest.
        kept: Which rows are compared, `[batch]`.
        tolerance: See `Trial.tolerance`.
    """
    one, two = (np.asarray(each, np.float64) for each in (one, two))
    sizes = np.linalg.norm(one, axis=1)
    finite = np.isfinite(sizes)
    if not finite.any():
        return False
    with np.errstate(over="ignore", invalid="ignore"):  # Infinity less it.
        errors = np.linalg.norm(one - two, axis=1)
    limit = tolerance * (sizes + sizes[finite].mean()) + _NEGLIGIBLE
    # Negated, so that NaN differs.
    differing = np.broadcast_to(finite & ~(errors <= limit), kept.shape)
    return bool(differing[kept].any())


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
