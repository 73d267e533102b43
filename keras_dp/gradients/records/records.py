"""Per-example gradients of one variable, as lazy records.

Each class computes squared norms and weighted sums from the inputs of a layer
and the cotangents of its outputs. It builds the per-example gradients only
where that is cheaper. See `keras_dp.dp_queries.LazyRecords`.
"""

import abc
import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_dp._override import override

# Sums of this many terms keep a relative 1e-5 in float32, in XLA's order too.
_SUMMED_IN_FLOAT32 = 2**16

# Letters for the axes of a gradient. The batch is `b`.
_AXES = "acdefghijklm"

_OUTSIDE_XLA = contextvars.ContextVar("outside_xla", default=False)
_ALL_FINITE = contextvars.ContextVar("all_finite", default=False)


class _Together(NamedTuple):
    """How sums are computed that are checked together.

    Attributes:
        graph: The graph in which all of them are checked.
        checks: A number for each sum, which is not finite if the sum is not.
        careful: Whether a check has failed, and examples of weight 0 are set
            to 0.
    """

    graph: Any
    checks: list[tf.Tensor]
    careful: bool


_TOGETHER: contextvars.ContextVar[_Together | None] = contextvars.ContextVar(
    "together", default=None
)


@contextlib.contextmanager
def outside_xla(certainly: bool) -> Iterator[None]:
    """Says whether it is certain that XLA does not compile what is inside."""
    token = _OUTSIDE_XLA.set(certainly)
    try:
        yield
    finally:
        _OUTSIDE_XLA.reset(token)


@contextlib.contextmanager
def all_finite(certainly: bool) -> Iterator[None]:
    """Says whether sums are computed as if all examples were finite.

    An example that is not finite then makes the sum not finite, even if its
    weight is 0.
    """
    token = _ALL_FINITE.set(certainly)
    try:
        yield
    finally:
        _ALL_FINITE.reset(token)


class GradientRecords(abc.ABC):
    """The per-example gradients of one variable, `[batch, *shape]`.

    All numbers are float32 or float64. The gradients of variables in half
    precision are float32.

    Guarantee: for each example, `squared_norms` is at least the squared L2 norm
        of the vector that `weighted_sum` adds at weight 1, up to rounding.
    """

    @abc.abstractmethod
    def squared_norms(self) -> tf.Tensor:
        """Returns the squared L2 norm of each example, shape `[batch]`.

        Where the terms of a gradient cancel, it may be an upper bound.
        """

    @abc.abstractmethod
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns `sum_i weights[i] * gradient[i]`, in the variable's shape.

        An example of weight 0 contributes nothing, even if it is not finite.

        Args:
            weights: Shape `[batch]`.
        """

    def weighted_sums(
        self, others: Sequence["GradientRecords"], weights: tf.Tensor
    ) -> list[tf.Tensor]:
        """Returns `weighted_sum` of these gradients and of others.

        All are computed a second time if one of them is not finite. A check of
        each alone would make the graph of a step a quarter larger.

        Args:
            others: The gradients of other variables.
            weights: Shape `[batch]`.
        """
        return _sums_together([self, *others], weights)

    @abc.abstractmethod
    def materialize(self) -> tf.Tensor:
        """Returns all per-example gradients, `[batch, *shape]`."""

    @abc.abstractmethod
    def take(self, indices: tf.Tensor) -> "GradientRecords":
        """Returns the records of some examples.

        Args:
            indices: Places in the batch, shape `[n]` with a static `n`.
        """

    @abc.abstractmethod
    def grouped(self, size: int, weights: tf.Tensor) -> "GradientRecords":
        """Returns one record for each group of `size` consecutive examples.

        It is the weighted sum of the gradients of the group.

        Args:
            size: The number of examples in a group, a divisor of the batch.
            weights: The factor of each example, shape `[batch]`. An example of
                weight 0 contributes nothing, even if it is not finite.
        """

    def scaled(self, factors: Sequence[tf.Tensor]) -> "GradientRecords":
        """Returns the gradients times a product of one factor for each axis.

        The entry `[i, j, ...]` of a gradient is multiplied by
        `factors[0][i] * factors[1][j] * ...`. Where the gradients are sums of
        products of such factors, they are not built.

        Args:
            factors: A vector for each axis of the variable, public.
        """
        return MaterializedRecords(self.materialize()).scaled(factors)

    def joined(self, other: "GradientRecords") -> "GradientRecords | None":
        """Returns the sum of these gradients and of another use's gradients.

        Args:
            other: The gradients from another use of the variable.

        Returns:
            `None` if the sum needs both to be materialized.
        """
        return None


class MaterializedRecords(GradientRecords):
    """Per-example gradients that were built."""

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
    def scaled(self, factors: Sequence[tf.Tensor]) -> "MaterializedRecords":
        scale = outer_product(factors, self.gradients.dtype)
        return MaterializedRecords(self.gradients * scale)

    @override
    def joined(self, other: GradientRecords) -> "MaterializedRecords | None":
        if not isinstance(other, MaterializedRecords):
            return None
        return MaterializedRecords(self.gradients + other.gradients)


class ZeroRecords(GradientRecords):
    """The gradients of a variable on which the loss does not depend."""

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

    @override
    def scaled(self, factors: Sequence[tf.Tensor]) -> "ZeroRecords":
        return self


def in_float(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor as float32 or wider, because norms need the range."""
    tensor = tf.convert_to_tensor(tensor)
    wide = tensor.dtype in {tf.float32, tf.float64}
    return tensor if wide else tf.cast(tensor, tf.float32)


def outer_product(factors: Sequence[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """Returns the products of one number of each vector, an axis for each."""
    product = tf.ones([], dtype)
    for factor in factors:
        product = product[..., tf.newaxis] * tf.cast(factor, dtype)
    return product


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

    Args:
        weights: Shape `[batch]`.
        tensor: Shape `[batch, ...]`.
    """
    weights = tf.cast(weights, tensor.dtype)
    return finite_or(
        _product(weights, tensor),
        lambda: tf.reduce_sum(weighted(tensor, weights), axis=0),
    )


def finite_or(total: tf.Tensor, careful: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Returns a sum, computed in a second way if it is not finite.

    Examples that are not finite have weight 0, and are rare. To set them to 0
    first would copy all others, which takes as long as the sum.

    Args:
        total: The sum. It is not finite if an example is not, because 0 times
            infinity is NaN.
        careful: Computes the sum with the examples of weight 0 set to 0.
    """
    if _ALL_FINITE.get():
        return total
    together = _TOGETHER.get()
    if together is not None and together.careful:
        return careful()
    # The sum of all entries is not finite if one of them is not. It takes one
    # pass, which writes nothing.
    check = tf.reduce_sum(total)
    if together is not None and together.graph is _graph():
        # If it overflows here, the sums are computed carefully for nothing.
        together.checks.append(tf.cast(check, tf.float32))
        return total
    return tf.cond(tf.math.is_finite(check), lambda: total, careful)


def _graph() -> Any:
    """Returns the present graph. The body of a loop has a graph of its own."""
    return tf.compat.v1.get_default_graph()


@contextlib.contextmanager
def _together(checks: list[tf.Tensor], *, careful: bool) -> Iterator[None]:
    token = _TOGETHER.set(_Together(_graph(), checks, careful))
    try:
        yield
    finally:
        _TOGETHER.reset(token)


def _sums_together(
    records: list[GradientRecords], weights: tf.Tensor
) -> list[tf.Tensor]:
    """Returns weighted sums, with one check of those that need one."""
    totals: list[tf.Tensor] = []
    checks: list[tf.Tensor] = []
    checked = []
    with _together(checks, careful=False):
        for place, each in enumerate(records):
            before = len(checks)
            totals.append(each.weighted_sum(weights))
            if len(checks) > before:
                checked.append(place)

    def carefully() -> list[tf.Tensor]:
        with _together([], careful=True):
            return [records[place].weighted_sum(weights) for place in checked]

    if checks:
        found = tf.cond(
            tf.math.is_finite(tf.add_n(checks)),
            lambda: [totals[place] for place in checked],
            carefully,
        )
        for place, total in zip(checked, found, strict=True):
            totals[place] = total
    return totals


def _product(weights: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    axes = _AXES[: tensor.shape.rank - 1]
    # `tf.matmul` with its reshapes would add nine operations to the graph.
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
    """Returns the L2 norms along an axis, which is removed."""
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
    # XLA adds in order. In float32, small squares among a million are lost.
    dtype, last = tensor.dtype, shape[-1]
    if last > _SUMMED_IN_FLOAT32:
        tensor = tf.cast(tensor, tf.float64)
    rows = tf.reshape(tensor, [batch, width // last, last])
    norms = tf.cast(norms_along(rows, axis=2), tf.float64)
    return tf.cast(tf.reduce_sum(tf.square(norms), axis=1), dtype)


def summed(parts: Sequence[GradientRecords]) -> GradientRecords:
    """Returns the gradients of a variable from those of each of its uses.

    The norm of a sum has cross terms. They need materialized gradients if the
    uses are of different kinds.
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
