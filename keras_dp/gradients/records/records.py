"""Per-example gradients of one variable, in the form a layer leaves them.

Each class answers the three questions of a batch of records (squared norms,
weighted sum, materialize; see `keras_dp.dp_queries.LazyRecords`) from what the
backward pass to the layer's output left behind, and builds the per-example
gradients only where that is cheaper.
"""

import abc
import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from typing_extensions import override

# Sums of this many terms keep a relative 1e-5 in float32, in XLA's order too.
_SUMMED_IN_FLOAT32 = 2**16

# Names of the axes of a gradient.
_AXES = "acdefghijklm"

_OUTSIDE_XLA = contextvars.ContextVar("outside_xla", default=False)
_ALL_FINITE = contextvars.ContextVar("all_finite", default=False)


@contextlib.contextmanager
def outside_xla(certainly: bool) -> Iterator[None]:
    """Says whether what is built inside is certainly not compiled by XLA."""
    token = _OUTSIDE_XLA.set(certainly)
    try:
        yield
    finally:
        _OUTSIDE_XLA.reset(token)


@contextlib.contextmanager
def all_finite(certainly: bool) -> Iterator[None]:
    """Says whether examples that are not finite may be left to spoil a sum."""
    token = _ALL_FINITE.set(certainly)
    try:
        yield
    finally:
        _ALL_FINITE.reset(token)


class GradientRecords(abc.ABC):
    """The per-example gradients of one variable, `[batch, *shape]`."""

    @abc.abstractmethod
    def squared_norms(self) -> tf.Tensor:
        """Returns each example's squared L2 norm, shape `[batch]`."""

    @abc.abstractmethod
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sum under `weights` `[batch]`, the variable's shape.

        An example of weight 0 contributes nothing, even if not finite.
        """

    @abc.abstractmethod
    def materialize(self) -> tf.Tensor:
        """Returns all per-example gradients, `[batch, *shape]`."""

    @abc.abstractmethod
    def take(self, indices: tf.Tensor) -> "GradientRecords":
        """Returns the examples at `indices`, `[n]`, of a static length."""

    @abc.abstractmethod
    def grouped(self, size: int, weights: tf.Tensor) -> "GradientRecords":
        """Returns one record per group of `size` consecutive examples.

        Args:
            size: A divisor of the batch.
            weights: The factor of each example's gradient in the sum of its
                group, `[batch]`. An example of weight 0 contributes nothing,
                even if it is not finite.
        """

    def joined(self, other: "GradientRecords") -> "GradientRecords | None":
        """Returns the sum of two uses of a variable without materializing.

        It returns `None` if the two uses are not of one kind.
        """
        return None


class MaterializedRecords(GradientRecords):
    """Gradients that are small, or that only their values describe."""

    def __init__(self, gradients: tf.Tensor) -> None:
        self.gradients = in_float(gradients)

    @override
    def squared_norms(self) -> tf.Tensor:
        return squared_sums(self.gradients)

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return sum_under(weights, self.gradients)

    @override
    def materialize(self) -> tf.Tensor:
        return self.gradients

    @override
    def take(self, indices: tf.Tensor) -> "MaterializedRecords":
        return MaterializedRecords(tf.gather(self.gradients, indices))

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "MaterializedRecords":
        groups = grouped_axis(weighted(self.gradients, weights), size)
        return MaterializedRecords(tf.reduce_sum(groups, axis=1))

    @override
    def joined(self, other: GradientRecords) -> "MaterializedRecords | None":
        if not isinstance(other, MaterializedRecords):
            return None
        return MaterializedRecords(self.gradients + other.gradients)


class ZeroRecords(GradientRecords):
    """A variable that the loss does not depend on."""

    def __init__(self, batch: int, template: tf.Tensor) -> None:
        self.batch, self.template = batch, in_float(template)

    @override
    def squared_norms(self) -> tf.Tensor:
        return tf.zeros([self.batch], self.template.dtype)

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return tf.zeros_like(self.template)

    @override
    def materialize(self) -> tf.Tensor:
        return tf.zeros([self.batch, *self.template.shape], self.template.dtype)

    @override
    def take(self, indices: tf.Tensor) -> "ZeroRecords":
        return ZeroRecords(indices.shape[0], self.template)

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "ZeroRecords":
        return ZeroRecords(self.batch // size, self.template)


def in_float(tensor: tf.Tensor) -> tf.Tensor:
    """Returns half precision as float32: norms need its range."""
    tensor = tf.convert_to_tensor(tensor)
    wide = tensor.dtype in {tf.float32, tf.float64}
    return tensor if wide else tf.cast(tensor, tf.float32)


def kept(tensor: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns `tensor` with examples of weight 0 set to 0 (0 * NaN is NaN)."""
    keep = _along_batch(weights != 0, tensor)
    return tf.where(keep, tensor, tf.zeros_like(tensor))


def weighted(tensor: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns `tensor` with every example multiplied by its weight.

    An example of weight 0 becomes 0, even if not finite.
    """
    weights = _along_batch(tf.cast(weights, tensor.dtype), tensor)
    return tf.math.multiply_no_nan(tensor, weights)


def scaled(tensor: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns `tensor` times the weights; 0 * NaN stays NaN."""
    return tensor * _along_batch(tf.cast(weights, tensor.dtype), tensor)


def sum_under(weights: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the sum of the examples under `weights`.

    One of weight 0 contributes nothing, even if not finite.
    """
    weights = tf.cast(weights, tensor.dtype)
    return finite_or(
        _product(weights, tensor),
        lambda: tf.reduce_sum(weighted(tensor, weights), axis=0),
    )


def finite_or(total: tf.Tensor, careful: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Returns `total`, computed carefully if it is not finite.

    Examples that are not finite have weight 0, and are rare. Setting them to 0
    beforehand copies all others, which takes as long as the sum.
    """
    if _ALL_FINITE.get():
        return total
    # Not finite if anything in it is not: one pass, which writes nothing.
    check = tf.reduce_sum(total)
    return tf.cond(tf.math.is_finite(check), lambda: total, careful)


def _product(weights: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    axes = _AXES[: tensor.shape.rank - 1]
    # `tf.matmul` with its reshapes would be nine operations of the graph.
    return tf.raw_ops.Einsum(
        inputs=[weights, tensor], equation=f"b,b{axes}->{axes}"
    )


def grouped_axis(tensor: tf.Tensor, size: int) -> tf.Tensor:
    """Returns `[batch, ...]` as `[batch / size, size, ...]`."""
    batch, *rest = tensor.shape
    return tf.reshape(tensor, [batch // size, size, *rest])


def _along_batch(vector: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    return tf.reshape(vector, [-1] + [1] * (tensor.shape.rank - 1))


def norms_along(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns the norms along an axis."""
    if _OUTSIDE_XLA.get():  # One pass instead of two, and no copy.
        return tf.math.reduce_euclidean_norm(tensor, axis=axis)
    dtype = tensor.dtype
    if tensor.shape[axis] > _SUMMED_IN_FLOAT32:
        tensor = tf.cast(tensor, tf.float64)
    squares = tf.reduce_sum(tf.square(tensor), axis=axis)
    return tf.cast(tf.sqrt(squares), dtype)


def squared_sums(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the squared norm of each example's part, shape `[batch]`."""
    batch, *shape = tensor.shape
    width = math.prod(shape)
    if width <= _SUMMED_IN_FLOAT32:
        rows = tensor if len(shape) == 1 else tf.reshape(tensor, [batch, width])
        return tf.square(norms_along(rows, axis=1))
    # XLA adds up in order: in float32 a million small squares are lost.
    dtype, last = tensor.dtype, shape[-1]
    if last > _SUMMED_IN_FLOAT32:
        tensor = tf.cast(tensor, tf.float64)
    rows = tf.reshape(tensor, [batch, width // last, last])
    norms = tf.cast(norms_along(rows, axis=2), tf.float64)
    return tf.cast(tf.reduce_sum(tf.square(norms), axis=1), dtype)


def summed(parts: Sequence[GradientRecords]) -> GradientRecords:
    """Returns the records of a variable from those of each of its uses.

    Norms have cross terms: uses of different kinds are materialized.
    """
    total, *others = parts
    for other in others:
        joint = total.joined(other)
        if joint is None:
            return MaterializedRecords(
                tf.add_n([part.materialize() for part in parts])
            )
        total = joint
    return total
