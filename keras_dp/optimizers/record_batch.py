"""The records of one physical batch: its rows, or groups of them."""

from typing import Any, NamedTuple

import tensorflow as tf


class RecordBatch(NamedTuple):
    """A batch of records for one query: tensors `[batch, ...]` or lazy records.

    The mask, of shape `[batch]`, is false for padding, which can be in any row.
    It is `None` if there is no padding.
    """

    records: Any
    mask: tf.Tensor | None


def of_records(rows: tf.Tensor, views: int) -> tf.Tensor:
    """Returns the mean over the views of each record.

    A record has consecutive rows, one for each of its `views`.
    """
    if views == 1:
        return rows
    shape = [rows.shape[0] // views, views, *rows.shape[1:]]
    return tf.reduce_mean(tf.reshape(rows, shape), axis=1)
