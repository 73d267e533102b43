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
