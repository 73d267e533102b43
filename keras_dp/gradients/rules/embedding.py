"""The rule of `Embedding`."""

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records.row_records import RowRecords


@registry.register(keras.layers.Embedding, registry.has_plain_kernel)
def embedding(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the table `[rows, width]`."""
    return [(call.layer.embeddings, row_records(call))]


def row_records(call: registry.LayerCall) -> RowRecords:
    """Returns the updates of the rows that a call looked up."""
    layer, (cotangent,) = call.layer, call.cotangents
    rows, width = layer.embeddings.shape
    ids = tf.cast(call.inputs, tf.int32)
    # `keras.ops.take` counts negative indices from the end.
    ids = tf.where(ids < 0, ids + rows, ids)
    batch = cotangent.shape[0]
    return RowRecords(
        tf.reshape(ids, [batch, -1]),
        tf.reshape(cotangent, [batch, -1, width]),
        rows,
        static_shapes=call.static_shapes,
    )
