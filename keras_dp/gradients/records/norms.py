"""Norms of parts of gradients."""

import contextlib
import contextvars
import math
from collections.abc import Iterator

import tensorflow as tf

from keras_dp._rounding import UNIT_32, UNIT_64

# Sums of this many terms keep a relative 1e-5 in float32, in XLA's order too.
SUMMED_IN_FLOAT32 = 2**16


_OUTSIDE_XLA = contextvars.ContextVar("outside_xla", default=False)


@contextlib.contextmanager
def outside_xla(certainly: bool) -> Iterator[None]:
    """Says whether it is certain that XLA does not compile what is inside."""
    token = _OUTSIDE_XLA.set(certainly)
    try:
        yield
    finally:
        _OUTSIDE_XLA.reset(token)


def norms_along(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns the L2 norms along an axis, which is removed."""
    if _OUTSIDE_XLA.get():  # One pass instead of two, and no copy.
        return tf.math.reduce_euclidean_norm(tensor, axis=axis)
    dtype = tensor.dtype
    if tensor.shape[axis] > SUMMED_IN_FLOAT32:
        tensor = tf.cast(tensor, tf.float64)
    squares = tf.reduce_sum(tf.square(tensor), axis=axis)
    return tf.cast(tf.sqrt(squares), dtype)


def squared_sums(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the squared norm of each example's part, shape `[batch]`."""
    batch, *shape = tensor.shape
    width = math.prod(shape)
    if width <= SUMMED_IN_FLOAT32:
        rows = tensor if len(shape) == 1 else tf.reshape(tensor, [batch, width])
        return tf.square(norms_along(rows, axis=1))
    # XLA adds in order. In float32, small squares among a million are lost.
    dtype, last = tensor.dtype, shape[-1]
    if last > SUMMED_IN_FLOAT32:
        tensor = tf.cast(tensor, tf.float64)
    rows = tf.reshape(tensor, [batch, width // last, last])
    norms = tf.cast(norms_along(rows, axis=2), tf.float64)
    return tf.cast(tf.reduce_sum(tf.square(norms), axis=1), dtype)


def at_least(squares: tf.Tensor, least: tf.Tensor) -> tf.Tensor:
    """Returns the maximum, and squares that are not finite as they are.

    A part of a sum that overflows may be -inf, and the maximum of that, or of
    NaN, and a number may be the number.
    """
    known = tf.math.is_finite(squares)
    return tf.where(known, tf.maximum(squares, least), squares)


def unit_of(dtype: tf.DType) -> float:
    """Returns the unit of rounding."""
    return UNIT_64 if dtype == tf.float64 else UNIT_32
