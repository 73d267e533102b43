"""The rules of `DepthwiseConv1D` and `DepthwiseConv2D`."""

import math

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records.records import MaterializedRecords
from keras_dp.gradients.rules.convolution_layers import (
    has_known_options,
    inputs_and_cotangent,
    with_bias,
)
from keras_dp.gradients.rules.convolution_phases import (
    all_runs,
    geometry,
    phases_of,
    seen,
)

# TensorFlow's filter gradient on CPU is fastest for about this many channels.
_FOLDED_CHANNELS = 1024


@registry.register(keras.layers.DepthwiseConv1D, has_known_options)
@registry.register(keras.layers.DepthwiseConv2D, has_known_options)
def depthwise_conv(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the kernel and the bias."""
    layer = call.layer
    records = depthwise_records(
        layer,
        layer.kernel,
        *inputs_and_cotangent(call),
        static_shapes=call.static_shapes,
    )
    return with_bias(call, [(layer.kernel, records)])


def depthwise_records(
    layer: keras.Layer,
    kernel: keras.Variable,
    inputs: tf.Tensor,
    cotangent: tf.Tensor,
    *,
    static_shapes: bool,
) -> MaterializedRecords:
    """Returns the gradients of the kernel of a depthwise convolution.

    Args:
        layer: The layer, which has strides, dilation and padding.
        kernel: The kernel, `[*taps, channels, multiplier]`, with one or two
            spatial axes.
        inputs: `[batch, ..., channels]`, float32 or wider.
        cotangent: `[batch, ..., channels * multiplier]`, of the same dtype.
        static_shapes: False on CPU outside XLA, where TensorFlow's own filter
            gradient is fast and is used if it supports the options.
    """
    knows = len(layer.strides) == 2 and set(layer.dilation_rate) == {1}
    if not static_shapes and knows and len(set(layer.strides)) == 1:
        gradients = _folded(layer, kernel, inputs, cotangent)
    else:
        gradients = _by_tap(layer, kernel, inputs, cotangent)
    return MaterializedRecords(
        tf.reshape(gradients, [inputs.shape[0], *kernel.shape])
    )


def _folded(
    layer: keras.Layer,
    kernel: keras.Variable,
    images: tf.Tensor,
    cotangent: tf.Tensor,
) -> tf.Tensor:
    """Returns the gradients, from several examples as channels of one image."""
    *taps, channels, multiplier = kernel.shape
    batch = images.shape[0]
    most = max(1, _FOLDED_CHANNELS // (channels * multiplier))
    parts = []
    for start in range(0, batch, most):
        count = min(most, batch - start)
        folded = [
            tf.reshape(
                tf.transpose(tensor[start : start + count], [1, 2, 0, 3]),
                [1, *tensor.shape[1:-1], count * tensor.shape[-1]],
            )
            for tensor in (images, cotangent)
        ]
        gradients = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
            input=folded[0],
            filter_sizes=[*taps, count * channels, multiplier],
            out_backprop=folded[1],
            strides=[1, *layer.strides, 1],
            padding=layer.padding.upper(),
        )
        gradients = tf.reshape(
            gradients, [math.prod(taps), count, channels * multiplier]
        )
        parts.append(tf.transpose(gradients, [1, 0, 2]))
    return tf.concat(parts, axis=0)


def _by_tap(
    layer: keras.Layer,
    kernel: keras.Variable,
    inputs: tf.Tensor,
    cotangent: tf.Tensor,
) -> tf.Tensor:
    """Returns the gradient of each tap as a sum of products over pixels."""
    *sizes, _, multiplier = kernel.shape
    batch, *outputs, channels = cotangent.shape
    pixels = math.prod(outputs)
    moves = geometry(
        inputs.shape[1:-1],
        sizes,
        layer.strides,
        layer.dilation_rate,
        layer.padding,
    )
    if multiplier > 1:
        inputs = tf.repeat(inputs, multiplier, axis=-1)
    phases = phases_of(inputs, outputs, moves)
    cotangent = tf.reshape(cotangent, [batch, pixels, 1, channels])
    ones = tf.ones([batch, 1, pixels], cotangent.dtype)
    sums = []
    for taps in all_runs(moves, first=0):
        images = seen(phases, taps, outputs, moves)
        images = tf.reshape(images, [batch, pixels, -1, channels])
        products = tf.reshape(images * cotangent, [batch, pixels, -1])
        # This is faster than `reduce_sum` over a middle axis.
        sums.append(tf.matmul(ones, products))
    return tf.concat(sums, axis=-1)
