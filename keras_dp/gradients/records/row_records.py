"""Gradients of tables as sums of updates to rows."""

from collections.abc import Sequence

import tensorflow as tf

from keras_dp._override import override
from keras_dp._rounding import Proven
from keras_dp.gradients.records.norms import squared_sums
from keras_dp.gradients.records.proven_bounds import of_table_rows
from keras_dp.gradients.records.records import GradientRecords, in_float
from keras_dp.gradients.records.sums import weighted


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
        """Stores the updates.

        Args:
            ids: The rows that are updated, `[batch, n]`, in `[0, rows)`.
            updates: The updates of these rows, `[batch, n, width]`.
            rows: The number of rows of the table.
            static_shapes: Whether no tensor may have a shape that depends on
                data. If one may, only the updates that share a row are added.
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
        share a row.

        Args:
            order: The order that sorts the ids of each example, `[batch, n]`.
            repeats: Whether an id in that order equals the one before,
                `[batch, n]`.
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
    def materialize(self) -> tf.Tensor:
        return self._tables(*self._by_row())

    def _tables(self, ids: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the updates of each example, as tables."""
        batch, _, width = updates.shape
        number = tf.range(batch, dtype=ids.dtype)[:, tf.newaxis]
        tables = _rows_added(
            updates, ids + self.rows * number, batch * self.rows
        )
        return tf.reshape(tables, [batch, self.rows, width])

    @override
    def take(self, indices: tf.Tensor) -> "RowRecords":
        ids, updates = self._by_row()
        return self._with(tf.gather(ids, indices), tf.gather(updates, indices))

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
