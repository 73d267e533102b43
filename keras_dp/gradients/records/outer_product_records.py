"""Gradients of kernels as sums of outer products."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_dp._override import override
from keras_dp._rounding import Proven
from keras_dp.gradients.records import cost_model
from keras_dp.gradients.records.proven_bounds import (
    of_built,
    of_outer_products,
)
from keras_dp.gradients.records.records import (
    GradientRecords,
    grouped_axis,
    in_float,
)
from keras_dp.gradients.records.reductions import (
    at_least,
    finite_or,
    kept,
    norms_along,
    scaled,
    squared_sums,
    sum_under,
    unit_of,
    weighted,
)

# A vector of up to 10^7 entries has its norm by a plain sum of squares in
# float32, if that norm is in this range. No square overflows, and those that
# vanish, of entries below `_VANISHING`, are less than 1e-7 of the sum.
_LEAST_SIZE, _MOST_SIZE = 1e-12, 1e15
_VANISHING = 1.1e-19
# Squared norms up to this are bounded, and not told from zero.
_NEARLY_ZERO = 1e-20


class Arrangement(NamedTuple):
    """How a gradient `[rows, left, right]` gets the shape of the variable.

    It is reshaped to `inner`, transposed by `order`, and reshaped to `shape`.
    """

    inner: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]

    def apply(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns gradients in the shape of the variable.

        The tensor is `[rows, left, right]` or `[batch, rows, left, right]`.
        """
        lead = list(tensor.shape[:-3])
        order = [*range(len(lead)), *(len(lead) + axis for axis in self.order)]
        if order != sorted(order):
            tensor = tf.reshape(tensor, lead + list(self.inner))
            tensor = tf.transpose(tensor, order)
        return tf.reshape(tensor, lead + list(self.shape))

    def along(self, axis: int, sizes: tuple[int, int, int]) -> np.ndarray:
        """Returns where each entry of a gradient is along an axis.

        The axis is one of the variable; the result is `[rows, left, right]`,
        which are the `sizes`.
        """
        number = np.arange(self.shape[axis], dtype=np.int32)
        others = [each for each in range(len(self.shape)) if each != axis]
        places = np.broadcast_to(
            np.expand_dims(number, others), self.shape
        ).reshape([self.inner[each] for each in self.order])
        return places.transpose(np.argsort(self.order)).reshape(sizes)


class OuterProductRecords(GradientRecords):
    """Sums of outer products: `sum_t left[b, r, t, :] right[b, r, t, :]^T`.

    This is the gradient of every kernel that is contracted with an input. `b`
    is the example. `r` runs over the positions with a kernel of their own, such
    as the groups of a convolution. `t` runs over the positions that share a
    kernel, such as the steps of a sequence, pixels and repeated calls.

    Norms are computed from built gradients or as ghost norms, as the cost model
    picks. Ghost norms have a margin for rounding, and a least value where terms
    cancel.

    Source: Goodfellow (2015), arXiv:1510.01799v2, has ghost norms for one
    position, and Bu et al. (2022), arXiv:2210.00038v1, for many.
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
        """Whether the gradients are built.

        The norms are then those of the vectors that are summed, bit by bit.
        Ghost norms need a margin.
        """
        return cost_model.instantiates(*self._sizes, self.left.dtype.size)

    @override
    def squared_norms(self) -> tf.Tensor:
        if self._sizes[2] > 1 and self.instantiates:
            return squared_sums(self._instantiated())
        if self._sizes[2] > 1:
            return _ghost_norms(*self.balanced())
        norms = norms_along(self.left, axis=3)
        # The squares that vanish add up to less than the square of this. So a
        # vector whose norm comes out below it is at most `bound` long.
        vanishing = math.sqrt(self._sizes[3]) * _VANISHING
        bound = tf.constant(2 * vanishing, norms.dtype)
        # A maximum of NaN and a number may be the number.
        bounds = tf.where(norms < bound, bound, norms)
        squares = squared_sums(self.right * bounds[..., tf.newaxis])
        if self._sizes[1] == 1:
            least = most = tf.squeeze(norms, [1, 2])
        else:
            least = tf.reduce_min(norms, axis=[1, 2])
            most = tf.reduce_max(norms, axis=[1, 2])
        in_range = (least >= _LEAST_SIZE) & (most <= _MOST_SIZE)
        # Most of these are zero: padding has no inputs.
        in_range |= (most <= vanishing) & (squares <= _NEARLY_ZERO)
        # Both branches agree on the examples in range: nobody's norm depends on
        # the others.
        return tf.cond(
            tf.reduce_all(in_range),
            lambda: squares,
            lambda: tf.where(in_range, squares, self._squares_of_balanced()),
        )

    def _squares_of_balanced(self) -> tf.Tensor:
        left, right = self.balanced()
        return squared_sums(right * norms_along(left, axis=3)[..., tf.newaxis])

    @override
    def proven(self) -> Proven:
        if self.instantiates:
            proven = of_built(self._instantiated())
        else:
            proven = of_outer_products(self.left, self.right, self._contract)
        return proven._replace(
            sums=lambda weights: self.arrangement.apply(proven.sums(weights))
        )

    def balanced(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns factors with the same products. Entries on the left are <= 1.

        In float32, the squares of numbers below 1e-19 are 0. A small left
        factor would lose its terms, even if the right factor is large.
        """
        sizes = _largest(self.left)
        sizes = tf.where(sizes > 0, sizes, tf.ones_like(sizes))
        # The factors are not finite if the left one is not, or if a product of
        # both is too large.
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
        return self.arrangement.apply(total[0])

    @override
    def materialize(self, indices: tf.Tensor | None = None) -> tf.Tensor:
        if indices is None:
            products = self._instantiated()
        else:
            left, right = (
                tf.gather(side, indices) for side in (self.left, self.right)
            )
            products = tf.matmul(left, right, transpose_a=True)
        return self.arrangement.apply(products)

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "OuterProductRecords":
        """Joins the examples of a group as positions `t` of one record."""

        def joined(factor: tf.Tensor) -> tf.Tensor:
            _, rows, shared, width = factor.shape
            groups = tf.transpose(grouped_axis(factor, size), [0, 2, 1, 3, 4])
            return tf.reshape(groups, [-1, rows, size * shared, width])

        left, right = kept(self.left, weights), weighted(self.right, weights)
        return OuterProductRecords(
            joined(left), joined(right), self.arrangement
        )

    @override
    def scaled(self, factors: Sequence[tf.Tensor]) -> GradientRecords:
        _, rows, _, left, right = self._sizes
        places = [
            self.arrangement.along(axis, (rows, left, right))
            for axis in range(len(factors))
        ]
        lefts = tf.ones([rows, left], self.left.dtype)
        rights = tf.ones([rows, right], self.right.dtype)
        for factor, own in zip(factors, places, strict=True):
            each = tf.cast(factor, self.left.dtype)
            if (own == own[:, :, :1]).all():
                lefts *= tf.gather(each, own[:, :, 0])
            elif (own == own[:, :1, :]).all():
                rights *= tf.gather(each, own[:, 0, :])
            else:  # The axis is made of both sides.
                return super().scaled(factors)
        return OuterProductRecords(
            self.left * lefts[:, tf.newaxis],
            self.right * rights[:, tf.newaxis],
            self.arrangement,
        )

    def _contract(
        self, left: tf.Tensor, right: tf.Tensor, blocks: int = 1
    ) -> tf.Tensor:
        """Returns the sum of each block, `[blocks, rows, left, right]`."""
        batch, rows, shared, lefts, rights = self._sizes
        if rows > 1:
            size = [blocks, batch // blocks, rows, shared]
            left = tf.reshape(left, [*size, lefts])
            right = tf.reshape(right, [*size, rights])
            return tf.einsum("nbrtp,nbrtq->nrpq", left, right)
        size = [blocks] * (blocks > 1) + [batch // blocks * shared]
        left = tf.reshape(left, [*size, lefts])
        right = tf.reshape(right, [*size, rights])
        sums = tf.matmul(left, right, transpose_a=True)
        return tf.reshape(sums, [blocks, 1, lefts, rights])

    def _instantiated(self) -> tf.Tensor:
        """Returns the gradients, `[batch, rows, left, right]`."""
        if self._products is None:
            self._products = tf.matmul(self.left, self.right, transpose_a=True)
        return self._products


def _largest(left: tf.Tensor) -> tf.Tensor:
    """Returns the largest size of an entry along the last axis, which stays."""
    above = tf.reduce_max(left, axis=-1, keepdims=True)
    below = tf.reduce_min(left, axis=-1, keepdims=True)
    return tf.maximum(above, -below)  # `tf.abs` would write a copy.


def _ghost_norms(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Returns squared ghost norms with a margin for rounding, `[batch]`.

    Let `S` be the sum of the norms of the n terms of a row of an example, and
    `u` the unit of rounding. The squared norm has a rounding error of the order
    of `u S^2`, which is added. If the terms cancel further than `least_square`
    says, that is returned. The factors are `balanced`.
    """
    shared, widths = left.shape[2], left.shape[3] + right.shape[3]
    lefts = tf.matmul(left, left, transpose_b=True)
    rights = tf.matmul(right, right, transpose_b=True)
    rows = tf.reduce_sum(lefts * rights, axis=3)
    grams = _added_in_float64(rows)
    terms = norms_along(left, axis=3) * norms_along(right, axis=3)
    squares = tf.square(_added_in_float64(terms))
    margin = unit_of(left.dtype) * (1 + widths / 64)
    least = least_square(left.shape[0], shared, left.dtype)
    bounds = at_least(grams, least * squares) + margin * squares
    return tf.cast(tf.reduce_sum(bounds, axis=1), left.dtype)


def least_square(batch: int, terms: int, dtype: tf.DType) -> float:
    """Returns the least squared norm of a gradient whose terms cancel.

    It is relative to `S^2`, where `S` is the sum of the norms of the terms of
    the example. The weighted sum over the batch adds all `N = batch * terms`
    terms in an unknown order. With the clip `C` and the least norm `r S`, the
    norms of these terms add up to `batch C / r` at most. So:

    * The rounding within the example, of the order of `u S`, is small against
      the norm for `r >= 1 / (16 sqrt(terms))`. Terms in unrelated directions
      do not cancel so far: the norm of their sum is about `S / sqrt(terms)`.
    * The rounding of one partial sum over the batch is at most `u batch C / r`.
      For `r >= 64 u batch`, this is at most `C / 64`.

    The worst case over all N roundings is not held. It is `gamma_N batch C / r`
    with `gamma_N = N u / (1 - N u)` (Higham 2002, Accuracy and Stability of
    Numerical Algorithms, eq. 4.4), which is above `C / 64` for every `r <= 1`
    from 128 examples of 16 terms on, in float32.

    Args:
        batch: The number of examples that are summed at once.
        terms: The number of terms of an example.
        dtype: In which is added.
    """
    return max(1 / (256 * terms), (64 * unit_of(dtype) * batch) ** 2)


def _added_in_float64(tensor: tf.Tensor) -> tf.Tensor:
    """Returns float64 sums over the last axis, because XLA adds in order."""
    return tf.reduce_sum(tf.cast(tensor, tf.float64), axis=-1)
