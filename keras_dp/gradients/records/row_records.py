"""Gradients of tables as sums of updates to rows."""

import tensorflow as tf
from typing_extensions import override

from keras_dp.gradients.records.records import (
    GradientRecords,
    in_float,
    norms_along,
    squared_sums,
    weighted,
)

# The least norm of a gradient, relative to the sum of the norms of its updates.
# Where updates cancel further, rounding in float32 could exceed the clip. Up to
# 2^18 updates in unrelated directions do not cancel so far.
_LEAST_ROW_NORM = 2.0**-9


class RowRecords(GradientRecords):
    """Sums of updates to rows of a table: the gradient of an embedding."""

    def __init__(
        self,
        ids: tf.Tensor,
        updates: tf.Tensor,
        rows: int,
        *,
        static_shapes: bool = True,
    ) -> None:
        """Stores the updates.

        Args:
            ids: The rows that are updated, `[batch, n]`, in `[0, rows)`.
            updates: The updates of these rows, `[batch, n, width]`.
            rows: The number of rows of the table.
            static_shapes: Whether no tensor may have a shape that depends on
                data. If one may, norms add up only the updates that share a
                row.
        """
        self.ids, self.updates, self.rows = ids, in_float(updates), rows
        self.static_shapes = static_shapes

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
        """Returns squared norms, with a least value where updates cancel."""
        norms = norms_along(self.updates, axis=2)
        if self.ids.shape[1] == 1:
            return tf.square(norms[:, 0])
        if self.rows <= self.ids.shape[1]:
            squares = squared_sums(self.materialize())
        else:
            squares = self._squares_by_row(norms)
        total = tf.reduce_sum(norms, axis=1)
        return tf.maximum(squares, tf.square(_LEAST_ROW_NORM * total))

    def _squares_by_row(self, norms: tf.Tensor) -> tf.Tensor:
        """Returns the squared norms, `[batch]`, without building tables.

        Args:
            norms: The norm of each update, `[batch, n]`.
        """
        order = tf.argsort(self.ids, axis=1, stable=True)
        ids = tf.gather(self.ids, order, batch_dims=1)
        repeats = tf.pad(ids[:, 1:] == ids[:, :-1], [[0, 0], [1, 0]])
        if self.static_shapes:
            return self._squares_of_all(order, repeats)
        return self._squares_of_shared(order, repeats, norms)

    def _squares_of_all(
        self, order: tf.Tensor, repeats: tf.Tensor
    ) -> tf.Tensor:
        """Returns the squared norms, `[batch]`. It adds up all updates by row.

        Args:
            order: The order that sorts the ids of each example, `[batch, n]`.
            repeats: Whether an id in that order equals the one before,
                `[batch, n]`.
        """
        batch, count, width = self.updates.shape
        updates = tf.gather(self.updates, order, batch_dims=1)
        runs = tf.cumsum(tf.cast(~repeats, tf.int32), axis=1)
        runs += count * tf.range(batch)[:, tf.newaxis] - 1
        sums = _rows_added(updates, runs, batch * count)
        return squared_sums(tf.reshape(sums, [batch, count, width]))

    def _squares_of_shared(
        self, order: tf.Tensor, repeats: tf.Tensor, norms: tf.Tensor
    ) -> tf.Tensor:
        """Returns the same. It adds up only the updates that share a row.

        Args:
            order: As in `_squares_of_all`.
            repeats: As in `_squares_of_all`.
            norms: The norm of each update, `[batch, n]`.
        """
        batch = self.updates.shape[0]
        shares = repeats | tf.pad(repeats[:, 1:], [[0, 0], [0, 1]])
        alone = tf.where(
            shares,
            tf.zeros_like(norms),
            tf.gather(norms, order, batch_dims=1),
        )
        places = tf.where(shares)
        starts = ~tf.gather_nd(repeats, places)
        runs = tf.cumsum(tf.cast(starts, tf.int32)) - 1
        examples = places[:, 0]
        updates = tf.gather_nd(
            self.updates,
            tf.stack(
                [examples, tf.cast(tf.gather_nd(order, places), tf.int64)],
                axis=1,
            ),
        )
        sums = tf.math.segment_sum(updates, runs)
        squares = tf.square(norms_along(sums, axis=1))
        return tf.reduce_sum(
            tf.square(alone), axis=1
        ) + tf.math.unsorted_segment_sum(
            squares, tf.boolean_mask(examples, starts), batch
        )

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return _rows_added(weighted(self.updates, weights), self.ids, self.rows)

    @override
    def materialize(self) -> tf.Tensor:
        batch, _, width = self.updates.shape
        ids = self.ids + self.rows * tf.cast(
            tf.range(batch)[:, tf.newaxis], self.ids.dtype
        )
        tables = _rows_added(self.updates, ids, batch * self.rows)
        return tf.reshape(tables, [batch, self.rows, width])

    @override
    def take(self, indices: tf.Tensor) -> "RowRecords":
        return self._with(
            tf.gather(self.ids, indices), tf.gather(self.updates, indices)
        )

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "RowRecords":
        _, count, width = self.updates.shape
        updates = weighted(self.updates, weights)
        return self._with(
            tf.reshape(self.ids, [-1, size * count]),
            tf.reshape(updates, [-1, size * count, width]),
        )


def _rows_added(updates: tf.Tensor, ids: tf.Tensor, rows: int) -> tf.Tensor:
    """Returns the sum of the updates, as a table `[rows, width]`."""
    batch, count, width = updates.shape
    # On several cores it is faster than `scatter_nd`, which runs on one.
    return tf.math.unsorted_segment_sum(
        tf.reshape(updates, [batch * count, width]),
        tf.reshape(ids, [batch * count]),
        rows,
    )
