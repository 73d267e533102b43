"""The rules of `Embedding` and `ReversibleEmbedding`."""

from typing import Any

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)
from keras_dp.gradients.records.table_records import (
    RowRecords,
    TiedTableRecords,
)
from keras_dp.keras_internals import replaced_attribute


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


def _observed(opened: registry.OpenCall) -> tuple[Any, None]:
    """Calls the layer, and watches the logits before they are capped."""
    cap = opened.layer.logit_soft_cap
    with replaced_attribute(opened.layer, "logit_soft_cap", None):
        outputs = opened.outputs()
    opened.watch([outputs])
    if is_reversed(opened.args, opened.kwargs) and cap is not None:
        outputs = keras.ops.multiply(
            keras.ops.tanh(keras.ops.divide(outputs, cap)), cap
        )
    return outputs, None


def is_reversed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call projects by the table instead of looking rows up."""
    return bool(args[1] if len(args) > 1 else kwargs.get("reverse", False))


@registry.register(
    keras.layers.ReversibleEmbedding,
    registry.has_plain_kernel,
    observe=_observed,
)
def reversible_embedding(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the table of a call.

    It is `embeddings`, `[rows, width]`. If a call projects and the weights are
    not tied, it is `reverse_embeddings`, `[width, rows]`.
    """
    layer, (cotangent,) = call.layer, call.cotangents
    if not is_reversed(call.args, call.kwargs):
        return [(layer.embeddings, TiedTableRecords(row_records(call), None))]
    rows, width = layer.embeddings.shape
    batch = cotangent.shape[0]
    outs = tf.reshape(cotangent, [batch, 1, -1, rows])
    # The layer computes in `reverse_dtype`.
    inputs = tf.cast(call.inputs, cotangent.dtype)
    ins = tf.reshape(inputs, [batch, 1, -1, width])
    if layer.tie_weights:
        shape = (rows, width)
        products = OuterProductRecords(
            outs, ins, Arrangement(shape, (0, 1), shape)
        )
        return [(layer.embeddings, TiedTableRecords(None, products))]
    shape = (width, rows)
    kernel = OuterProductRecords(ins, outs, Arrangement(shape, (0, 1), shape))
    return [(layer.reverse_embeddings, kernel)]
