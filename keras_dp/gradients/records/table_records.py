"""Gradients of tables, whose rows are looked up and which may project, too."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_dp._override import override
from keras_dp._rounding import LARGEST_RATIO, UNIT_64, UP, Proven, gamma
from keras_dp.gradients.records.outer_product_records import (
    OuterProductRecords,
    least_square,
)
from keras_dp.gradients.records.proven_bounds import of_table_rows
from keras_dp.gradients.records.records import (
    GradientRecords,
    in_float,
    taken,
)
from keras_dp.gradients.records.reductions import (
    at_least,
    norms_along,
    squared_sums,
    unit_of,
    weighted,
)


class RowRecords(GradientRecords):
    """Sums of updates to rows of a table: the gradient of an embedding.

    The updates of one row are first added within each example. Norms and sums
    both take what this gives, so a rounding error in it moves neither the clip
    nor the sum of the other examples, however far the updates cancel.
    """

    def __init__(
        self,
        ids: tf.Tensor,
        updates: tf.Tensor,
        rows: int,
        *,
        static_shapes: bool = True,
    ) -> None:
        """Stores updates `[batch, n, width]` of the rows `ids`, `[batch, n]`.

        The ids are in `[0, rows)`. Without `static_shapes`, a tensor may have a
        shape that depends on data, and only the updates that share a row are
        added.
        """
        self.ids, self.updates, self.rows = ids, in_float(updates), rows
        self.static_shapes = static_shapes
        self._added: tuple[tf.Tensor, tf.Tensor] | None = None

    @override
    def joined(self, other: GradientRecords) -> "RowRecords | None":
        if not isinstance(other, RowRecords):
            return None
        return self._with(
            tf.concat([self.ids, other.ids], axis=1),
            tf.concat([self.updates, other.updates], axis=1),
        )

    def _with(self, ids: tf.Tensor, updates: tf.Tensor) -> "RowRecords":
        return RowRecords(
            ids, updates, self.rows, static_shapes=self.static_shapes
        )

    @override
    def squared_norms(self) -> tf.Tensor:
        return squared_sums(self._by_row()[1])

    def _by_row(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns ids and updates in which no example updates a row twice.

        There may also be updates of 0.
        """
        if self._added is None:
            if self.ids.shape[1] == 1:
                self._added = self.ids, self.updates
            elif self.rows <= self.ids.shape[1]:
                every = tf.range(self.rows, dtype=self.ids.dtype)
                self._added = (
                    tf.tile(every[tf.newaxis], [self.ids.shape[0], 1]),
                    self._tables(self.ids, self.updates),
                )
            else:
                self._added = self._of_runs()
        return self._added

    def _of_runs(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the same, without building tables."""
        order = tf.argsort(self.ids, axis=1, stable=True)
        ids = tf.gather(self.ids, order, batch_dims=1)
        repeats = tf.pad(ids[:, 1:] == ids[:, :-1], [[0, 0], [1, 0]])
        if not self.static_shapes:
            return self.ids, self._shared_added(order, repeats)
        batch, count, width = self.updates.shape
        updates = tf.gather(self.updates, order, batch_dims=1)
        runs = tf.cumsum(tf.cast(~repeats, tf.int32), axis=1)
        runs += count * tf.range(batch)[:, tf.newaxis] - 1
        sums = _rows_added(updates, runs, batch * count)
        # Places without a run have the least integer, and an update of 0.
        own = tf.math.unsorted_segment_max(
            tf.reshape(ids, [-1]), tf.reshape(runs, [-1]), batch * count
        )
        return (
            tf.reshape(tf.maximum(own, 0), [batch, count]),
            tf.reshape(sums, [batch, count, width]),
        )

    def _shared_added(self, order: tf.Tensor, repeats: tf.Tensor) -> tf.Tensor:
        """Returns the updates, of which the first of a row has the sum of all.

        The other updates of that row are 0. It touches only the updates that
        share a row. `order` sorts the ids of each example, and `repeats` says
        whether an id in that order equals the one before.
        """
        shares = repeats | tf.pad(repeats[:, 1:], [[0, 0], [0, 1]])
        places = tf.where(shares)
        starts = ~tf.gather_nd(repeats, places)
        runs = tf.cumsum(tf.cast(starts, tf.int32)) - 1
        numbers = tf.cast(tf.gather_nd(order, places), tf.int64)
        places = tf.stack([places[:, 0], numbers], axis=1)
        sums = tf.math.segment_sum(tf.gather_nd(self.updates, places), runs)
        added = tf.gather(sums, runs)
        return tf.tensor_scatter_nd_update(
            self.updates,
            places,
            tf.where(starts[:, tf.newaxis], added, tf.zeros_like(added)),
        )

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        ids, updates = self._by_row()
        return _rows_added(weighted(updates, weights), ids, self.rows)

    @override
    def proven(self) -> Proven:
        ids, updates = self._by_row()
        return of_table_rows(
            updates,
            lambda rows: _rows_added(rows, ids, self.rows),
            self.rows * updates.shape[-1],
        )

    @override
    def materialize(self, indices: tf.Tensor | None = None) -> tf.Tensor:
        return self._tables(*(taken(each, indices) for each in self._by_row()))

    def _tables(self, ids: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the updates of each example, as tables."""
        batch, _, width = updates.shape
        number = tf.range(batch, dtype=ids.dtype)[:, tf.newaxis]
        tables = _rows_added(
            updates, ids + self.rows * number, batch * self.rows
        )
        return tf.reshape(tables, [batch, self.rows, width])

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "RowRecords":
        _, count, width = self.updates.shape
        updates = weighted(self.updates, weights)
        return self._with(
            tf.reshape(self.ids, [-1, size * count]),
            tf.reshape(updates, [-1, size * count, width]),
        )

    @override
    def scaled(self, factors: Sequence[tf.Tensor]) -> "RowRecords":
        rows, columns = (tf.cast(f, self.updates.dtype) for f in factors)
        own = tf.gather(rows, self.ids)[:, :, tf.newaxis]
        return self._with(self.ids, self.updates * own * columns)


def _rows_added(updates: tf.Tensor, ids: tf.Tensor, rows: int) -> tf.Tensor:
    """Returns the sum of the updates, as a table `[rows, width]`."""
    batch, count, width = updates.shape
    # On several cores it is faster than `scatter_nd`, which runs on one.
    return tf.math.unsorted_segment_sum(
        tf.reshape(updates, [batch * count, width]),
        tf.reshape(ids, [batch * count]),
        rows,
    )


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
        """Stores the uses, of which one may be `None`.

        The projections have the rows of the table on the left, and its shape.
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
        uses: list[tuple[Any, Any]] = [
            (self.lookups, other.lookups),
            (self.projections, other.projections),
        ]
        return TiedTableRecords(
            *(
                one.joined(two) if one and two else one or two
                for one, two in uses
            )
        )

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
    def materialize(self, indices: tf.Tensor | None = None) -> tf.Tensor:
        return tf.add_n([part.materialize(indices) for part in self._parts])

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
    return tf.reduce_sum(tf.cast(tensor, tf.float64), axis=1)
