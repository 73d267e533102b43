"""Sums that look at every coordinate of records, a chunk of them at a time."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import Nest


def chunked_sum(
    like: Nest,
    records: Nest,
    mask: Any,
    chunk_bytes: int,
    contribution: Callable[[tf.Tensor], tf.Tensor],
) -> Nest:
    """Returns the sum of what each record contributes, as a nest like `like`.

    Args:
        like: Nest of tensors of the shape and dtype of one record.
        records: Nest of that structure, leaves `[batch, ...]` or lazy.
        mask: As in `records.masked`.
        chunk_bytes: As in `records.sum_in_chunks`.
        contribution: As in `records.sum_in_chunks`.
    """
    try:
        tf.nest.assert_same_structure(like, records)
    except (TypeError, ValueError):
        # The message of `tf.nest` would show values.
        raise ValueError(
            "`records` must have the structure of the template, which has "
            f"{len(tf.nest.flatten(like))} leaves. Received: a nest of "
            f"another, with {len(tf.nest.flatten(records))} leaves."
        ) from None
    sums = records_lib.sum_in_chunks(
        tf.nest.flatten(records),
        tf.nest.flatten(like),
        mask,
        chunk_bytes,
        contribution,
    )
    return tf.nest.pack_sequence_as(like, sums)
