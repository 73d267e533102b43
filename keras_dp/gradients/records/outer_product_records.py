"""Gradients of kernels: sums of outer products."""

from typing import NamedTuple

import tensorflow as tf
from typing_extensions import override

from keras_dp.gradients.records import cost_model
from keras_dp.gradients.records.records import (
    GradientRecords,
    finite_or,
    grouped_axis,
    in_float,
    kept,
    norms_along,
    scaled,
    squared_sums,
    sum_under,
    weighted,
)


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
        if order != sorted(order):
            tensor = tf.reshape(tensor, lead + list(self.inner))
            tensor = tf.transpose(tensor, order)
        return tf.reshape(tensor, lead + list(self.shape))


class OuterProductRecords(GradientRecords):
    """Sums of outer products: `sum_t left[b, r, t, :] right[b, r, t, :]^T`.

    That is the gradient of every layer that contracts its input with a
    kernel. `r` runs over positions the kernel has of its own (groups of a
    convolution, shared axes of an einsum), `t` over those it is shared by
    (sequence, pixels, repeated calls).

    Source: ghost norms are those of Goodfellow (2015), arXiv:1510.01799v2, for
    one position and of Bu et al. (2022), arXiv:2210.00038v1, for many.
    """

    def __init__(
        self, left: tf.Tensor, right: tf.Tensor, arrangement: Arrangement
    ) -> None:
        self.left, self.right = in_float(left), in_float(right)
        self.arrangement = arrangement
        self._products: tf.Tensor | None = None

    @override
    def joined(self, other: GradientRecords) -> "OuterProductRecords | None":
        if not isinstance(other, OuterProductRecords) or (
            other.arrangement != self.arrangement
        ):
            return None
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
        """Whether the gradients are built, and not only their norms.

        The clipped gradient is then the summed one, bit by bit; a ghost norm
        needs a margin.
        """
        return cost_model.instantiates(*self._sizes, self.left.dtype.size)

    @override
    def squared_norms(self) -> tf.Tensor:
        if self._sizes[2] > 1 and self.instantiates:
            return squared_sums(self._instantiated())
        left, right = self.balanced()
        if self._sizes[2] > 1:
            return _ghost_norms(left, right)
        norms = norms_along(left, axis=3) * norms_along(right, axis=3)
        return tf.reduce_sum(tf.square(norms), axis=[1, 2])

    def balanced(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the factors, the size of each term on the right alone.

        The squares of numbers below 1e-19 are 0 in float32, however large the
        factor that they are multiplied with.
        """
        sizes = tf.reduce_max(tf.abs(self.left), axis=3, keepdims=True)
        sizes = tf.where(sizes > 0, sizes, tf.ones_like(sizes))
        # Not finite if the left is not, and if a product of both is too large.
        return self.left / sizes, self.right * sizes

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        if self.instantiates:
            return self.arrangement.apply(
                sum_under(weights, self._instantiated())
            )
        weights = tf.cast(weights, self.left.dtype)
        total = finite_or(
            self._contract(self.left, scaled(self.right, weights)),
            lambda: self._contract(
                kept(self.left, weights), weighted(self.right, weights)
            ),
        )
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


def _ghost_norms(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Returns upper bounds: ghost norms, with a margin for their rounding.

    With S the sum of the norms of an example's terms, the square is rounded by
    the order of `u S^2`, which is added, and the sum under weights by the order
    of `u S`. Both are small against a norm of `S / (16 sqrt(n))` for n terms,
    which is taken where the terms cancel further; n unrelated terms have about
    `S / sqrt(n)`.
    """
    shared, widths = left.shape[2], left.shape[3] + right.shape[3]
    lefts = tf.matmul(left, left, transpose_b=True)
    rights = tf.matmul(right, right, transpose_b=True)
    rows = tf.reduce_sum(lefts * rights, axis=3)
    grams = _added_in_float64(rows)
    terms = norms_along(left, axis=3) * norms_along(right, axis=3)
    squares = tf.square(_added_in_float64(terms))
    unit = 2.0**-53 if left.dtype == tf.float64 else 2.0**-24
    margin = unit * (1 + widths / 64)
    bounds = tf.maximum(grams, squares / (256 * shared)) + margin * squares
    return tf.cast(tf.reduce_sum(bounds, axis=1), left.dtype)


def _added_in_float64(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the sums over the last axis, which XLA adds up in order."""
    return tf.reduce_sum(tf.cast(tensor, tf.float64), axis=-1)
