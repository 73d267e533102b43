"""Per-example gradients of one variable, in the form a layer leaves them.

Each class answers the three questions of a batch of records (squared norms,
weighted sum, materialize; see `keras_dp.dp_queries.LazyRecords`) from what the
backward pass to the layer's output left behind, and builds the per-example
gradients only where that is cheaper.
"""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
from typing_extensions import override

# Gradients are instantiated up to this size. What is clipped is then what is
# summed, bit by bit; larger ones take the Gram form, which needs a margin.
INSTANTIATE_BYTES = 2**26
# Where the terms of a gradient cancel further than this, relative to the sum of
# their norms, the rounding of float32 could exceed the clip: the norm is then
# taken to be this much. Terms that are merely unrelated do not cancel so far.
_LEAST_ROW_NORM = 2.0**-9


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


class MaterializedRecords(GradientRecords):
    """Gradients that are small, or that only their values describe."""

    def __init__(self, gradients: tf.Tensor) -> None:
        self.gradients = in_float(gradients)

    @override
    def squared_norms(self) -> tf.Tensor:
        return _squared_sums(self.gradients)

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        weights = tf.cast(weights, self.gradients.dtype)
        return tf.tensordot(weights, kept(self.gradients, weights), axes=1)

    @override
    def materialize(self) -> tf.Tensor:
        return self.gradients


class Arrangement(NamedTuple):
    """How `[rows, left, right]` becomes the shape of a variable.

    Reshape to `inner`, transpose by `order`, reshape to `shape`.
    """

    inner: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]

    def apply(self, tensor: tf.Tensor, batch: int | None = None) -> tf.Tensor:
        """Returns the tensor rearranged, behind a batch axis if there is one.

        Args:
            tensor: `[rows, left, right]`, or `[batch, rows, left, right]`.
            batch: Size of the leading axis, if there is one.
        """
        lead = [] if batch is None else [batch]
        order = [*range(len(lead)), *(len(lead) + axis for axis in self.order)]
        tensor = tf.reshape(tensor, lead + list(self.inner))
        return tf.reshape(tf.transpose(tensor, order), lead + list(self.shape))


class OuterProductRecords(GradientRecords):
    """Sums of outer products: `sum_t left[b, r, t, :] right[b, r, t, :]^T`.

    That is the gradient of every layer that contracts its input with a
    kernel. `r` runs over positions the kernel has of its own (groups of a
    convolution, shared axes of an einsum), `t` over those it is shared by
    (sequence, pixels, repeated calls).

    Source: the Gram form of the norms is Goodfellow (2015), arXiv:1510.01799v2
    for one position and Bu et al. (2022), arXiv:2210.00038v1 for many.
    """

    def __init__(
        self, left: tf.Tensor, right: tf.Tensor, arrangement: Arrangement
    ) -> None:
        self.left, self.right = in_float(left), in_float(right)
        self.arrangement = arrangement
        self._products: tf.Tensor | None = None

    def joined(self, other: "OuterProductRecords") -> "OuterProductRecords":
        """Returns the sum of two, for a kernel that is used twice."""
        return OuterProductRecords(
            tf.concat([self.left, other.left], axis=2),
            tf.concat([self.right, other.right], axis=2),
            self.arrangement,
        )

    @property
    def _sizes(self) -> tuple[int, int, int, int, int]:
        batch, rows, shared, left = self.left.shape
        return batch, rows, shared, left, self.right.shape[-1]

    @property
    def instantiates(self) -> bool:
        """Whether the gradients are small enough to be built."""
        batch, rows, shared, left, right = self._sizes
        size = batch * rows * left * right * self.left.dtype.size
        return shared > 1 and size <= INSTANTIATE_BYTES

    @override
    def squared_norms(self) -> tf.Tensor:
        if self._sizes[2] == 1:
            lefts = tf.reduce_sum(tf.square(self.left), axis=[2, 3])
            rights = tf.reduce_sum(tf.square(self.right), axis=[2, 3])
            return tf.reduce_sum(lefts * rights, axis=1)
        if self.instantiates:
            return _squared_sums(self._instantiated())
        return self._gram_norms()

    def _gram_norms(self) -> tf.Tensor:
        """Upper bounds: the Gram form, with a margin for its rounding.

        With S the sum of the norms of an example's terms, the form is rounded
        by the order of `u S^2`, which is added, and the sum under weights by
        the order of `u S`. Both are small against a norm of `S / (16 sqrt(n))`
        for n terms, which is taken where the terms cancel further; n unrelated
        terms have about `S / sqrt(n)`.
        """
        _, _, shared, left, right = self._sizes
        lefts = tf.matmul(self.left, self.left, transpose_b=True)
        rights = tf.matmul(self.right, self.right, transpose_b=True)
        grams = tf.reduce_sum(lefts * rights, axis=[2, 3])
        terms = tf.norm(self.left, axis=3) * tf.norm(self.right, axis=3)
        squares = tf.square(tf.reduce_sum(terms, axis=2))
        unit = 2.0**-53 if self.left.dtype == tf.float64 else 2.0**-24
        margin = unit * (1 + (left + right) / 64)
        bounds = tf.maximum(grams, squares / (256 * shared)) + margin * squares
        return tf.reduce_sum(bounds, axis=1)

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        weights = tf.cast(weights, self.left.dtype)
        if self.instantiates:
            products = kept(self._instantiated(), weights)
            total = tf.tensordot(weights, products, axes=1)
        else:
            left = kept(self.left, weights)
            right = weighted(self.right, weights)
            total = self._contract(left, right)
        return self.arrangement.apply(total)

    @override
    def materialize(self) -> tf.Tensor:
        return self.arrangement.apply(self._instantiated(), self._sizes[0])

    def _contract(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        batch, rows, shared, lefts, rights = self._sizes
        if rows > 1:
            return tf.einsum("brtp,brtq->rpq", left, right)
        left = tf.reshape(left, [batch * shared, lefts])
        right = tf.reshape(right, [batch * shared, rights])
        return tf.matmul(left, right, transpose_a=True)[tf.newaxis]

    def _instantiated(self) -> tf.Tensor:
        """Shape `[batch, rows, left, right]`."""
        if self._products is None:
            self._products = tf.matmul(self.left, self.right, transpose_a=True)
        return self._products


class RowRecords(GradientRecords):
    """Sums of updates to rows of a table, as an embedding leaves them."""

    def __init__(self, ids: tf.Tensor, updates: tf.Tensor, rows: int) -> None:
        """Stores the updates.

        Args:
            ids: Rows that are updated, `[batch, n]`, in `[0, rows)`.
            updates: What is added to them, `[batch, n, width]`.
            rows: Number of rows of the table.
        """
        self.ids, self.updates, self.rows = ids, in_float(updates), rows

    def joined(self, other: "RowRecords") -> "RowRecords":
        """Returns the sum of two, for a table that is used twice."""
        return RowRecords(
            tf.concat([self.ids, other.ids], axis=1),
            tf.concat([self.updates, other.updates], axis=1),
            self.rows,
        )

    @override
    def squared_norms(self) -> tf.Tensor:
        """Upper bounds: exact unless updates of one row nearly cancel."""
        if self.ids.shape[1] == 1:
            return _squared_sums(self.updates)
        batch, count, width = self.updates.shape
        order = tf.argsort(self.ids, axis=1)
        ids = tf.gather(self.ids, order, batch_dims=1)
        updates = tf.gather(self.updates, order, batch_dims=1)
        starts = tf.pad(ids[:, 1:] != ids[:, :-1], [[0, 0], [1, 0]])
        segments = tf.cumsum(tf.cast(starts, tf.int32), axis=1)
        segments += count * tf.range(batch)[:, tf.newaxis]
        sums = tf.math.unsorted_segment_sum(
            tf.reshape(updates, [batch * count, width]),
            tf.reshape(segments, [batch * count]),
            batch * count,
        )
        squares = _squared_sums(tf.reshape(sums, [batch, count * width]))
        total = tf.reduce_sum(tf.norm(self.updates, axis=2), axis=1)
        return tf.maximum(squares, tf.square(_LEAST_ROW_NORM * total))

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        updates = weighted(self.updates, weights)
        batch, count, width = updates.shape
        return tf.math.unsorted_segment_sum(
            tf.reshape(updates, [batch * count, width]),
            tf.reshape(self.ids, [batch * count]),
            self.rows,
        )

    @override
    def materialize(self) -> tf.Tensor:
        batch, count, width = self.updates.shape
        ids = self.ids + self.rows * tf.cast(
            tf.range(batch)[:, tf.newaxis], self.ids.dtype
        )
        tables = tf.math.unsorted_segment_sum(
            tf.reshape(self.updates, [batch * count, width]),
            tf.reshape(ids, [batch * count]),
            batch * self.rows,
        )
        return tf.reshape(tables, [batch, self.rows, width])


class SummedRecords(MaterializedRecords):
    """A variable used in several ways: its gradient is the sum of all.

    The norms have cross terms, for which the gradients are materialized.
    """

    def __init__(self, parts: Sequence[GradientRecords]) -> None:
        super().__init__(tf.add_n([part.materialize() for part in parts]))


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


def summed(parts: Sequence[GradientRecords]) -> GradientRecords:
    """Returns the records of a variable from those of each of its uses."""
    total, *others = parts
    for other in others:
        joint = _joined(total, other)
        if joint is None:
            return SummedRecords(parts)
        total = joint
    return total


def _joined(
    one: GradientRecords, other: GradientRecords
) -> GradientRecords | None:
    """Returns the sum of two uses of one kind, `None` if they are not."""
    if isinstance(one, OuterProductRecords):
        if (
            isinstance(other, OuterProductRecords)
            and one.arrangement == other.arrangement
        ):
            return one.joined(other)
    elif isinstance(one, RowRecords):
        if isinstance(other, RowRecords):
            return one.joined(other)
    elif isinstance(one, MaterializedRecords) and isinstance(
        other, MaterializedRecords
    ):
        return MaterializedRecords(one.gradients + other.gradients)
    return None


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
    """Returns `tensor` with every example multiplied by its weight."""
    weights = tf.cast(weights, tensor.dtype)
    return kept(tensor, weights) * _along_batch(weights, tensor)


def _along_batch(vector: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    return tf.reshape(vector, [-1] + [1] * (tensor.shape.rank - 1))


def _squared_sums(tensor: tf.Tensor) -> tf.Tensor:
    axes = list(range(1, tensor.shape.rank))
    return tf.reduce_sum(tf.square(tensor), axis=axes)
