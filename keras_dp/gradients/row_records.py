"""Gradients of tables: sums of updates to rows."""

import tensorflow as tf
from typing_extensions import override

from keras_dp.gradients.records import (
    GradientRecords,
    in_float,
    squared_sums,
    weighted,
)

# Where the terms of a gradient cancel further than this, relative to the sum of
# their norms, the rounding of float32 could exceed the clip: the norm is then
# taken to be this much. Terms that are merely unrelated do not cancel so far.
_LEAST_ROW_NORM = 2.0**-9


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
            return squared_sums(self.updates)
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
        squares = squared_sums(tf.reshape(sums, [batch, count * width]))
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

    @override
    def take(self, indices: tf.Tensor) -> "RowRecords":
        return RowRecords(
            tf.gather(self.ids, indices),
            tf.gather(self.updates, indices),
            self.rows,
        )

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "RowRecords":
        _, count, width = self.updates.shape
        updates = weighted(self.updates, weights)
        return RowRecords(
            tf.reshape(self.ids, [-1, size * count]),
            tf.reshape(updates, [-1, size * count, width]),
            self.rows,
        )
