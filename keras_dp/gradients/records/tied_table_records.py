"""Gradients of a table for both looking up rows and projecting outputs."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_dp._override import override
from keras_dp._rounding import LARGEST_RATIO, UNIT_64, UP, Proven, gamma
from keras_dp.gradients.records.norms import (
    at_least,
    norms_along,
    unit_of,
)
from keras_dp.gradients.records.outer_product_records import (
    OuterProductRecords,
    least_square,
)
from keras_dp.gradients.records.records import GradientRecords
from keras_dp.gradients.records.row_records import RowRecords


class TiedTableRecords(GradientRecords):
    """Sums of updates to rows, plus sums of outer products, of one table.

    An embedding has both if its table is also the kernel of the output layer
    (Press and Wolf 2016, arXiv:1608.05859). Let `u_t` be the update of row
    `id_t`, and `g_s h_s^T` the outer product of position `s`. The squared norm
    of the sum is the two squared norms of the uses plus the cross term
    `2 sum_{s, t} g_s[id_t] <h_s, u_t>`. The cross term needs no table per
    example. The norm of one use may build such tables where that is cheaper.
    """

    def __init__(
        self,
        lookups: RowRecords | None,
        projections: OuterProductRecords | None,
    ) -> None:
        """Stores the uses.

        Args:
            lookups: The updates to rows of the table `[rows, width]`, or `None`
                if no rows were looked up.
            projections: The outer products, with the rows on the left and the
                shape of the table, or `None` if nothing was projected.
        """
        self.lookups, self.projections = lookups, projections

    @property
    def _parts(self) -> list[GradientRecords]:
        both = (self.lookups, self.projections)
        return [part for part in both if part is not None]

    @override
    def joined(self, other: GradientRecords) -> "TiedTableRecords | None":
        if not isinstance(other, TiedTableRecords):
            return None
        lookups, projections = self.lookups, self.projections
        if other.lookups is not None:
            lookups = (
                other.lookups
                if lookups is None
                else lookups.joined(other.lookups)
            )
        if other.projections is not None:
            projections = (
                other.projections
                if projections is None
                else projections.joined(other.projections)
            )
        return TiedTableRecords(lookups, projections)

    @override
    def squared_norms(self) -> tf.Tensor:
        """Returns squared norms, with a margin for the rounding of both uses.

        The margin and the least norm have the form of those of ghost norms,
        where the terms are the updates and the outer products.
        """
        squares = [part.squared_norms() for part in self._parts]
        if self.lookups is None or self.projections is None:
            return squares[0]
        left, right = self.projections.balanced()
        updates, ids = self.lookups.updates, self.lookups.ids
        count = left.shape[2] + updates.shape[1]
        products = tf.matmul(right[:, 0], updates, transpose_b=True)
        factors = tf.gather(left[:, 0], ids, axis=2, batch_dims=1)
        cross = tf.cast(tf.reduce_sum(products * factors, axis=2), tf.float64)
        terms = norms_along(left[:, 0], axis=2) * norms_along(
            right[:, 0], axis=2
        )
        total = _sum(terms) + _sum(norms_along(updates, axis=2))
        widths = left.shape[3] + right.shape[3]
        margin = unit_of(left.dtype) * (1 + (widths + count) / 64)
        exact = _sum(cross) * 2 + sum(
            tf.cast(part, tf.float64) for part in squares
        )
        least = least_square(left.shape[0], count, left.dtype)
        bounds = at_least(exact, least * tf.square(total))
        bounds += margin * tf.square(total)
        return tf.cast(bounds, left.dtype)

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return tf.add_n([part.weighted_sum(weights) for part in self._parts])

    @override
    def proven(self) -> Proven:
        """Bounds the norm of the sum of two uses by the sum of their norms."""
        each = [part.proven() for part in self._parts]
        norms = tf.add_n([tf.sqrt(part.squares) for part in each])

        def sums(weights: tf.Tensor) -> tf.Tensor:
            every = [tf.cast(part.sums(weights), tf.float64) for part in each]
            return tf.reduce_sum(tf.concat(every, 0), axis=0, keepdims=True)

        added = sum(part.blocks for part in each)
        lost = gamma(added, UNIT_64) * norms.shape[0] * LARGEST_RATIO
        return Proven(
            tf.square(norms) * UP,
            0,
            sum(part.error for part in each) + lost,
            sum(part.absolute for part in each),
            sums,
        )

    @override
    def materialize(self) -> tf.Tensor:
        return tf.add_n([part.materialize() for part in self._parts])

    @override
    def take(self, indices: tf.Tensor) -> "TiedTableRecords":
        return self._mapped(lambda part: part.take(indices))

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "TiedTableRecords":
        return self._mapped(lambda part: part.grouped(size, weights))

    @override
    def scaled(self, factors: Sequence[tf.Tensor]) -> "TiedTableRecords":
        return self._mapped(lambda part: part.scaled(factors))

    def _mapped(self, function: Callable[[Any], Any]) -> "TiedTableRecords":
        parts = (self.lookups, self.projections)
        return TiedTableRecords(
            *(None if part is None else function(part) for part in parts)
        )


def _sum(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the sum of each example's terms, in float64."""
    return tf.reduce_sum(tf.cast(tensor, tf.float64), axis=1)
