"""The data format, the options and the bias of convolutions of every kind."""

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records.records import (
    GradientRecords,
    MaterializedRecords,
    in_float,
)


def has_known_options(layer: keras.Layer) -> bool:
    """Whether the layer has a plain kernel, and "valid" or "same" padding."""
    return registry.has_plain_kernel(layer) and layer.padding in (
        "valid",
        "same",
    )


def channels_last(layer: keras.Layer, tensor: tf.Tensor) -> tf.Tensor:
    """Returns an input or output of a layer as `[batch, ..., channels]`.

    Args:
        layer: The layer, which has a `data_format`.
        tensor: `[batch, ..., channels]` or `[batch, channels, ...]`.
    """
    if layer.data_format == "channels_last":
        return tensor
    return tf.transpose(tensor, [0, *range(2, tensor.shape.rank), 1])


def inputs_and_cotangent(
    call: registry.LayerCall,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns both as `[batch, ..., channels]`, float32 or wider."""
    inputs, cotangent = (
        in_float(channels_last(call.layer, tensor))
        for tensor in (call.inputs, *call.cotangents)
    )
    return inputs, cotangent


def with_bias(
    call: registry.LayerCall, kernels: registry.Gradients
) -> registry.Gradients:
    """Returns the gradients of the kernels, and of the bias if there is one."""
    layer, (cotangent,) = call.layer, call.cotangents
    if layer.bias is None:
        return kernels
    bias = convolution_bias_records(layer, cotangent)
    return [*kernels, (layer.bias, bias)]


def convolution_bias_records(
    layer: keras.Layer, cotangent: tf.Tensor
) -> GradientRecords:
    """Returns the gradients of the bias, by the axis along which it is added.

    Args:
        layer: A convolution of any kind, with a `bias` and a `data_format`.
        cotangent: The cotangent of the output, in the layer's data format.
    """
    cotangent = in_float(cotangent)
    rank = cotangent.shape.rank
    axis = rank - 1
    if layer.data_format == "channels_first" and not _is_added_last(cotangent):
        axis = 1
    others = [other for other in range(1, rank) if other != axis]
    return MaterializedRecords(tf.reduce_sum(cotangent, axis=others))


def _is_added_last(outputs: tf.Tensor) -> bool:
    """Whether Keras adds a bias along the last axis of `channels_first`.

    Keras 3.15 does so, by mistake, if the last axis is as long as there are
    channels: `keras.ops.add` takes any such operand for a bias of
    `channels_last`. The gradient must be that of the sum that Keras computes.
    """
    channels, last = outputs.shape[1], outputs.shape[-1]
    if channels != last or channels == 1:
        return False
    with tf.init_scope():
        image = tf.zeros([1, *outputs.shape[1:]])
        bias = tf.reshape(
            tf.range(channels, dtype=tf.float32),
            [1, channels] + [1] * (outputs.shape.rank - 2),
        )
        added = keras.ops.add(image, bias)
        return not bool(tf.reduce_all(added == image + bias))
