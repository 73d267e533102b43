"""The rules of `Conv1DTranspose`, `Conv2DTranspose`, `Conv3DTranspose`."""

import math

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records import cost_model
from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)
from keras_dp.gradients.records.records import GradientRecords, in_float
from keras_dp.gradients.records.split_kernel_records import SplitKernelRecords
from keras_dp.gradients.rules.convolution_bias import (
    convolution_bias_records,
)
from keras_dp.gradients.rules.convolution_phases import (
    channels_last,
    geometry,
)
from keras_dp.gradients.rules.convolution_products import (
    patches,
    split_products,
)
from keras_dp.gradients.rules.depthwise_conv import has_known_options


@registry.register(keras.layers.Conv1DTranspose, has_known_options)
@registry.register(keras.layers.Conv2DTranspose, has_known_options)
@registry.register(keras.layers.Conv3DTranspose, has_known_options)
def conv_transpose(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the kernel and the bias."""
    layer, (cotangent,) = call.layer, call.cotangents
    inputs = in_float(channels_last(layer, call.inputs))
    cotangent = in_float(channels_last(layer, cotangent))
    pairs: registry.Gradients = [
        (layer.kernel, _kernel_records(layer, inputs, cotangent))
    ]
    if layer.bias is not None:
        bias = convolution_bias_records(layer, call.cotangents[0])
        pairs.append((layer.bias, bias))
    return registry.trainable(pairs)


def _kernel_records(
    layer: keras.Layer, inputs: tf.Tensor, cotangent: tf.Tensor
) -> GradientRecords:
    """Returns the gradients of the kernel, `[*taps, filters, channels]`.

    The layer is the transpose of a convolution from its output to its input.
    The gradient is that of this convolution's kernel, with the cotangent as
    images and the input as cotangent.
    """
    shape = tuple(layer.kernel.shape)
    batch, *size, channels = inputs.shape
    pixels, depth = math.prod(size), math.prod(shape[:-1])
    moves = geometry(
        cotangent.shape[1:-1],
        shape[:-2],
        layer.strides,
        layer.dilation_rate,
        layer.padding,
    )
    if cost_model.instantiates(
        batch, 1, pixels, depth, channels, inputs.dtype.size
    ):
        return SplitKernelRecords(
            split_products(cotangent, inputs, moves), shape
        )
    seen = patches(cotangent, size, moves)
    return OuterProductRecords(
        tf.reshape(seen, [batch, 1, pixels, depth]),
        tf.reshape(inputs, [batch, 1, pixels, channels]),
        Arrangement((depth, channels), (0, 1), shape),
    )
