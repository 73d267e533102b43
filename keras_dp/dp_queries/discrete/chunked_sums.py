"""Sums of functions of records, computed for a chunk of records at a time."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import Nest, check_structure


def chunked_sum(
    like: Nest,
    records: Nest,
    mask: Any,
    chunk_bytes: int,
    contribution: Callable[[tf.Tensor], tf.Tensor],
) -> Nest:
    """Returns the sum of what each record contributes, as a nest like `like`.

    As many records are built at once as fit in `chunk_bytes`, at least one.
    `contribution` needs a few times as much memory. It maps rows, of the shape
    `[chunk, size]`, to what they add to the sum, of that shape. A row has all
    leaves of a record behind one another. A record that is not finite comes,
    and counts, as zero.
    """
    check_structure(like, records)
    parts, leaves = keras.tree.flatten(like), keras.tree.flatten(records)
    weights = _weights_of_all(leaves, mask)
    batch = weights.shape[0]
    if batch is None:
        batch = tf.shape(weights)[0]
    sizes = [part.shape.num_elements() for part in parts]
    size, dtype = sum(sizes), parts[0].dtype
    chunk = max(1, chunk_bytes // max(1, size * dtype.size))
    if isinstance(batch, int):
        chunk = max(1, min(chunk, batch))

    def add_chunk(start: tf.Tensor, total: tf.Tensor) -> Any:
        places = start + tf.range(chunk)
        indices = tf.minimum(places, batch - 1)
        counts = (places < batch) & (tf.gather(weights, indices) > 0)
        rows = _rows(leaves, parts, indices, chunk)
        return start + chunk, total + _counted_sum(rows, counts, contribution)

    _, total = tf.while_loop(
        lambda start, _: start < batch,
        add_chunk,
        (tf.constant(0), tf.zeros([size], dtype)),
        parallel_iterations=1,
    )
    sums = [
        tf.reshape(each, part.shape)
        for each, part in zip(tf.split(total, sizes), parts, strict=True)
    ]
    return keras.tree.pack_sequence_as(like, sums)


def _weights_of_all(records: list[records_lib.Leaf], mask: Any) -> tf.Tensor:
    """Returns weight 1 for each record, 0 under the mask, `[batch]`."""
    weights = records_lib.masked(records_lib.ones(records[0]), mask)
    for leaf in records[1:]:
        if not isinstance(leaf, records_lib.LazyRecords):
            weights = records_lib.with_shape_of(
                records_lib.ones(leaf),
                weights,
                "records",
                "one batch in all leaves",
            )
    return weights


def _counted_sum(
    rows: tf.Tensor,
    counts: tf.Tensor,
    contribution: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Returns what the finite rows that count contribute, `[size]`."""
    counts &= tf.reduce_all(tf.math.is_finite(rows), axis=1)
    counts = counts[:, tf.newaxis]
    parts = contribution(tf.where(counts, rows, tf.zeros_like(rows)))
    parts = tf.where(counts, parts, tf.zeros_like(parts))
    return tf.reduce_sum(parts, axis=0)


def _rows(
    records: list[records_lib.Leaf],
    like: list[tf.Tensor],
    indices: tf.Tensor,
    chunk: int,
) -> tf.Tensor:
    """Returns the records at `indices`, `[chunk, size]`."""
    columns = []
    for leaf, own in zip(records, like, strict=True):
        rows = tf.cast(
            records_lib.in_float(_taken(leaf, indices)), like[0].dtype
        )
        rows = records_lib.with_shape_of(
            tf.zeros([chunk, *own.shape], rows.dtype),
            rows,
            "records",
            "the template's shape",
        )
        columns.append(tf.reshape(rows, [chunk, own.shape.num_elements()]))
    return tf.concat(columns, axis=1)


def _taken(leaf: records_lib.Leaf, indices: tf.Tensor) -> tf.Tensor:
    if not isinstance(leaf, records_lib.LazyRecords):
        return tf.gather(leaf, indices)
    return leaf.materialize(indices)
