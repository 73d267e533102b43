"""The records of one physical batch: its examples, or its microbatches."""

from typing import Any, NamedTuple

import tensorflow as tf


class RecordBatch(NamedTuple):
    """A batch of records for one query.

    Attributes:
        records: Nest with leaves `[batch, ...]`, or lazy ones.
        mask: Boolean, shape `[batch]`: false for padding, which can be in any
            row; `None` if there is no padding.
    """

    records: Any
    mask: tf.Tensor | None


class Grouping(NamedTuple):
    """The microbatches of a physical batch.

    Attributes:
        rows: Number of consecutive rows that make one microbatch, including
            padding.
        size: The public divisor of the sum of gradients in a microbatch.
        bound_factor: Adding or removing one privacy unit moves the sum over the
            sample by at most this many times the bound on one record.
        averages: Whether the sum is also divided by the number of examples in
            the microbatch.
    """

    rows: int
    size: float
    bound_factor: int
    averages: bool = False


def record_batch(
    gradients: list[Any],
    mask: tf.Tensor | None,
    batch: int,
    grouping: Grouping | None,
) -> RecordBatch:
    """Returns the gradients of examples, or of microbatches of them.

    Args:
        gradients: Records of each variable, one per example.
        mask: Shape `[batch]`, false for padding; `None` if there is none.
        batch: Number of rows, padding included.
        grouping: How rows make microbatches; `None` if each is a record.
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
    # A group of padding alone is no record, not one of norm 0.
    rows = tf.reshape(weights > 0, [batch // grouping.rows, grouping.rows])
    return RecordBatch(groups, tf.reduce_any(rows, axis=1))
