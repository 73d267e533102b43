"""Per-example gradients of one variable, as lazy records.

Each class computes squared norms and weighted sums from the inputs of a layer
and the cotangents of its outputs. It builds the per-example gradients only
where that is cheaper. See `keras_dp.dp_queries.LazyRecords`.
"""

import abc
from collections.abc import Sequence

import tensorflow as tf

from keras_dp._override import override
from keras_dp._rounding import Proven, over
from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients.records.proven_bounds import of_built
from keras_dp.gradients.records.reductions import (
    squared_sums,
    sum_under,
    sums_together,
    weighted,
)

# At most 4 GB of gradients are built to prove their bound.
_LARGEST_BUILT = 2**30


class GradientRecords(abc.ABC):
    """The per-example gradients of one variable, `[batch, *shape]`.

    They are `LazyRecords`. All numbers are float32 or float64. The gradients of
    variables in half precision are float32.

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
        """

    # `weighted_sum` or `Proven.sums` of these records and of others.
    sums_together = staticmethod(sums_together)

    def proven(self) -> Proven:
        """Returns what is proven of the norms and of the sum.

        Here the gradients are built, and it is about the vectors that were
        built. Where that takes too much memory, more than 2^30 numbers, it
        raises.
        """
        gradients = self.materialize()
        if gradients.shape.num_elements() > _LARGEST_BUILT:
            raise PrivateTrainingError(
                "With precision='proven', the gradients of this kind of layer "
                f"are built, and must have at most {_LARGEST_BUILT:,} numbers "
                f"in a batch. Received: shape={gradients.shape} from "
                f"{type(self).__name__}. Use smaller physical batches."
            )
        return of_built(gradients)

    @abc.abstractmethod
    def materialize(self, indices: tf.Tensor | None = None) -> tf.Tensor:
        """Returns gradients, `[batch, *shape]`, or those at `indices`, `[n]`.

        The number `n` is static.
        """

    @abc.abstractmethod
    def grouped(self, size: int, weights: tf.Tensor) -> "GradientRecords":
        """Returns one record for each group of `size` consecutive examples.

        It is the weighted sum of the gradients of the group. An example of
        weight 0 contributes nothing, even if it is not finite. `size` divides
        the batch.
        """

    def scaled(self, factors: Sequence[tf.Tensor]) -> "GradientRecords":
        """Returns the gradients times a product of one factor for each axis.

        The entry `[i, j, ...]` of a gradient is multiplied by `factors[0][i] *
        factors[1][j] * ...`. Where the gradients are sums of products of such
        factors, they are not built. The factors are public.
        """
        return MaterializedRecords(self.materialize()).scaled(factors)

    def joined(self, other: "GradientRecords") -> "GradientRecords | None":
        """Returns the sum of these gradients and of another use's gradients.

        There is none, `None`, if the sum needs both to be built.
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
    def materialize(self, indices: tf.Tensor | None = None) -> tf.Tensor:
        return taken(self.gradients, indices)

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "MaterializedRecords":
        return MaterializedRecords(group_sums(self.gradients, size, weights))

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
    def proven(self) -> Proven:
        nothing = tf.zeros([1, *self.template.shape], tf.float64)
        squares = tf.zeros([self.batch], tf.float64)
        return Proven(squares, 1, 0.0, 0.0, lambda weights: nothing)

    @override
    def materialize(self, indices: tf.Tensor | None = None) -> tf.Tensor:
        batch = self.batch if indices is None else indices.shape[0]
        return tf.zeros([batch, *self.template.shape], self.template.dtype)

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


def grouped_axis(tensor: tf.Tensor, size: int) -> tf.Tensor:
    """Returns `[batch, ...]` as `[batch / size, size, ...]`."""
    batch, *rest = tensor.shape
    return tf.reshape(tensor, [batch // size, size, *rest])


def group_sums(tensor: tf.Tensor, size: int, weights: tf.Tensor) -> tf.Tensor:
    """Returns the weighted sum of each group of `size` examples."""
    groups = grouped_axis(weighted(tensor, weights), size)
    return tf.reduce_sum(groups, axis=1)


def taken(tensor: tf.Tensor, indices: tf.Tensor | None) -> tf.Tensor:
    """Returns what belongs to some examples, or to all of them."""
    return tensor if indices is None else tf.gather(tensor, indices)


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


class ScaledRecords(GradientRecords):
    """Gradients times a power of two.

    Half precision cannot hold small gradients, so the loss is multiplied by a
    constant before it is differentiated. Here norms and sums, which are float32
    or wider, are divided by it. A power of two adds no rounding error, unless a
    result is too small for float32.
    """

    def __init__(self, inner: GradientRecords, factor: float) -> None:
        self.inner, self.factor = inner, factor

    @override
    def squared_norms(self) -> tf.Tensor:
        # In two steps, because float32 may not hold the square of the factor.
        return self.inner.squared_norms() * self.factor * self.factor

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return self.inner.weighted_sum(weights) * self.factor

    @override
    def proven(self) -> Proven:
        return over(
            self.inner.proven(),
            1 / self.factor,
            lambda sums: tf.cast(sums, tf.float64),
        )

    @override
    def materialize(self, indices: tf.Tensor | None = None) -> tf.Tensor:
        return self.inner.materialize(indices) * self.factor

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "ScaledRecords":
        return ScaledRecords(self.inner.grouped(size, weights), self.factor)

    @override
    def scaled(self, factors: Sequence[tf.Tensor]) -> "ScaledRecords":
        return ScaledRecords(self.inner.scaled(factors), self.factor)
