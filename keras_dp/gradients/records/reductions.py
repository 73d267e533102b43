"""Norms of parts of gradients, and their weighted sums.

Examples of weight 0 add nothing to a sum.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_dp._devices import is_outside_xla
from keras_dp._rounding import UNIT_32, UNIT_64

# Sums of this many terms keep a relative 1e-5 in float32, in XLA's order too.
SUMMED_IN_FLOAT32 = 2**16


def norms_along(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns the L2 norms along an axis, which is removed."""
    if is_outside_xla():  # One pass instead of two, and no copy.
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


class _Checks(NamedTuple):
    """The sums of one graph that are checked together.

    Each sum has a number, which is not finite if the sum is not.
    """

    graph: Any
    numbers: list[tf.Tensor]


# How it is made sure that sums are finite: "assumed", "careful" (examples of
# weight 0 are set to 0), or checks of several together. By default each sum is
# checked alone.
_FINITE: contextvars.ContextVar[str | _Checks] = contextvars.ContextVar(
    "finite", default=""
)


@contextlib.contextmanager
def _known_as(finite: "str | _Checks") -> Iterator[None]:
    token = _FINITE.set(finite)
    try:
        yield
    finally:
        _FINITE.reset(token)


def all_finite() -> contextlib.AbstractContextManager[None]:
    """Says that sums are computed as if all examples were finite.

    An example that is not finite then makes the sum not finite, even if its
    weight is 0.
    """
    return _known_as("assumed")


def kept(tensor: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns `tensor` with examples of weight 0 set to 0 (0 * NaN is NaN)."""
    keep = _along_batch(weights != 0, tensor)
    return tf.where(keep, tensor, tf.zeros_like(tensor))


def weighted(tensor: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns `tensor` with every example multiplied by its weight.

    An example of weight 0 becomes 0, even if it is not finite.
    """
    weights = _along_batch(tf.cast(weights, tensor.dtype), tensor)
    return tf.math.multiply_no_nan(tensor, weights)


def scaled(tensor: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the same, except that 0 * NaN is NaN."""
    return tensor * _along_batch(tf.cast(weights, tensor.dtype), tensor)


def sum_under(weights: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the weighted sum of the examples.

    An example of weight 0 contributes nothing, even if it is not finite.
    """
    weights = tf.cast(weights, tensor.dtype)
    return finite_or(
        _product(weights, tensor),
        lambda: tf.reduce_sum(weighted(tensor, weights), axis=0),
    )


def block_sums_under(
    weights: tf.Tensor, tensor: tf.Tensor, blocks: int
) -> tf.Tensor:
    """Returns weighted sums of equal blocks of examples, `[blocks, ...]`."""
    if blocks == 1:
        return sum_under(weights, tensor)[tf.newaxis]
    batch, *shape = tensor.shape
    size = [blocks, batch // blocks]
    # A second way for all blocks, chosen by one, could change their last bits.
    tensor = tf.reshape(kept(tensor, weights), [*size, math.prod(shape)])
    weights = tf.reshape(tf.cast(weights, tensor.dtype), [blocks, 1, -1])
    return tf.reshape(tf.matmul(weights, tensor), [blocks, *shape])


def finite_or(total: tf.Tensor, careful: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Returns a sum, computed in a second way if it is not finite.

    Examples that are not finite have weight 0, and are rare. To set them to 0
    first would copy all others, which takes as long as the sum. As 0 times
    infinity is NaN, the sum is not finite if an example is not. `careful`
    computes it with the examples of weight 0 set to 0.
    """
    how = _FINITE.get()
    if how == "assumed":
        return total
    if how == "careful":
        return careful()
    # The sum of all squares is not finite if an entry is not. It is a single
    # operation, which writes nothing.
    check = tf.nn.l2_loss(total)
    if isinstance(how, _Checks) and how.graph is _graph():
        # If it overflows here, the sums are computed carefully for nothing.
        how.numbers.append(tf.cast(check, tf.float32))
        return total
    return tf.cond(tf.math.is_finite(check), lambda: total, careful)


def _graph() -> Any:
    """Returns the present graph. The body of a loop has a graph of its own."""
    return tf.compat.v1.get_default_graph()


def sums_together(
    sums: Sequence[Callable[[tf.Tensor], tf.Tensor]], weights: tf.Tensor
) -> list[tf.Tensor]:
    """Returns weighted sums, with one check of those that need one.

    All of these are computed a second time if one of them is not finite. A
    check of each alone would make the graph of a step a quarter larger.
    """
    if _FINITE.get() == "assumed":
        return [each(weights) for each in sums]
    totals: list[tf.Tensor] = []
    checks = _Checks(_graph(), [])
    checked = []
    with _known_as(checks):
        for place, each in enumerate(sums):
            before = len(checks.numbers)
            totals.append(each(weights))
            if len(checks.numbers) > before:
                checked.append(place)

    def carefully() -> list[tf.Tensor]:
        with _known_as("careful"):
            return [sums[place](weights) for place in checked]

    if checked:
        found = tf.cond(
            tf.math.is_finite(tf.add_n(checks.numbers)),
            lambda: [totals[place] for place in checked],
            carefully,
        )
        for place, total in zip(checked, found, strict=True):
            totals[place] = total
    return totals


def _product(weights: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    batch, *shape = tensor.shape
    rows = tensor
    if len(shape) != 1:
        rows = tf.reshape(tensor, [batch, math.prod(shape)])
    # An einsum of the two takes longer.
    return tf.reshape(tf.raw_ops.MatMul(a=weights[tf.newaxis], b=rows), shape)


def _along_batch(vector: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    return tf.reshape(vector, [-1] + [1] * (tensor.shape.rank - 1))
