"""Gradients of kernels: sums of outer products."""

from typing import NamedTuple

import tensorflow as tf
from typing_extensions import override

from keras_dp.gradients.records import (
    GradientRecords,
    grouped_axis,
    in_float,
    kept,
    squared_sums,
    weighted,
)

# Gradients are instantiated up to this size. What is clipped is then what is
# summed, bit by bit; larger ones take the Gram form, which needs a margin.
INSTANTIATE_BYTES = 2**26


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
            return squared_sums(self._instantiated())
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

    @override
    def take(self, indices: tf.Tensor) -> "OuterProductRecords":
        return OuterProductRecords(
            tf.gather(self.left, indices),
            tf.gather(self.right, indices),
            self.arrangement,
        )

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "OuterProductRecords":
        """The examples of a group are positions of one record."""

        def joined(factor: tf.Tensor) -> tf.Tensor:
            _, rows, shared, width = factor.shape
            groups = tf.transpose(grouped_axis(factor, size), [0, 2, 1, 3, 4])
            return tf.reshape(groups, [-1, rows, size * shared, width])

        left, right = kept(self.left, weights), weighted(self.right, weights)
        return OuterProductRecords(
            joined(left), joined(right), self.arrangement
        )

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
