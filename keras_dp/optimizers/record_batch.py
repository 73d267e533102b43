"""The records of one physical batch: its rows, or groups of them."""

from typing import Any, NamedTuple

import tensorflow as tf


class RecordBatch(NamedTuple):
    """A batch of records for one query.

    Attributes:
        records: A nest whose leaves are tensors `[batch, ...]` or lazy records.
        mask: Booleans of shape `[batch]`. False is for padding, which can be in
            any row. `None` if there is no padding.
    """

    records: Any
    mask: tf.Tensor | None


class RowsOfRecord(NamedTuple):
    """The rows of a physical batch that make one record of the gradients.

    They are the examples of a microbatch, or the views of one example.

    Attributes:
        rows: The number of consecutive rows in one microbatch, with padding.
        size: The public divisor of the sum of the gradients in a microbatch.
        bound_factor: Adding or removing one privacy unit moves the sum over the
            sample by at most this many times the bound on one record.
        averages: Whether the divisor is instead the number of examples in the
            microbatch.
        views: The number of consecutive rows that are views of one example,
            which has one record for every query.
    """

    rows: int
    size: float
    bound_factor: int
    averages: bool = False
    views: int = 1

    @classmethod
    def of_views(cls, views: int) -> "RowsOfRecord":
        """Returns groups that are the views of one example each.

        All of a group are there, or none. An example is in one group alone, so
        that it moves the sum by the bound on one record.
        """
        return cls(views, views, bound_factor=1, views=views)


def of_records(rows: tf.Tensor, views: int) -> tf.Tensor:
    """Returns the mean over the views of each record.

    Args:
        rows: Shape `[records * views, ...]`.
        views: The number of consecutive rows that are views of one record.
    """
    if views == 1:
        return rows
    shape = [rows.shape[0] // views, views, *rows.shape[1:]]
    return tf.reduce_mean(tf.reshape(rows, shape), axis=1)


def record_batch(
    gradients: list[Any],
    mask: tf.Tensor | None,
    batch: int,
    grouping: RowsOfRecord | None,
) -> RecordBatch:
    """Returns the gradients of rows, or of groups of them.

    Args:
        gradients: The lazy records of each variable, one per example.
        mask: As in `RecordBatch`.
        batch: The number of rows, with padding.
        grouping: The groups, or `None` if each row is a record.
    """
    if grouping is None:
        return RecordBatch(gradients, mask)
    weights = tf.ones([batch]) if mask is None else tf.cast(mask, tf.float32)
    weights /= grouping.size
    if grouping.averages:
        shape = [batch // grouping.rows, grouping.rows]
        counts = tf.reduce_sum(tf.reshape(weights, shape), 1, keepdims=True)
        counts = tf.reshape(tf.broadcast_to(counts, shape), [batch])
        weights = tf.math.divide_no_nan(weights, counts)
    groups = [each.grouped(grouping.rows, weights) for each in gradients]
    # A group of padding alone is masked. It is not a record of norm 0.
    rows = tf.reshape(weights > 0, [batch // grouping.rows, grouping.rows])
    return RecordBatch(groups, tf.reduce_any(rows, axis=1))
