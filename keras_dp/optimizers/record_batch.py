"""The records of one physical batch: its examples, or its microbatches."""

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


class Grouping(NamedTuple):
    """The microbatches of a physical batch.

    Attributes:
        rows: The number of consecutive rows in one microbatch, with padding.
        size: The public divisor of the sum of the gradients in a microbatch.
        bound_factor: Adding or removing one privacy unit moves the sum over the
            sample by at most this many times the bound on one record.
        averages: Whether the divisor is instead the number of examples in the
            microbatch.
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
        gradients: The lazy records of each variable, one per example.
        mask: As in `RecordBatch`.
        batch: The number of rows, with padding.
        grouping: The microbatches, or `None` if each example is a record.
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
