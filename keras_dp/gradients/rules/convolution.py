"""The rules of `Conv1D`, `Conv2D`, `Conv3D` and their transposes."""

import math

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records import cost_model
from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)
from keras_dp.gradients.records.records import GradientRecords
from keras_dp.gradients.records.split_kernel_records import SplitKernelRecords
from keras_dp.gradients.rules.convolution_layers import (
    has_known_options,
    inputs_and_cotangent,
    with_bias,
)
from keras_dp.gradients.rules.convolution_phases import geometry
from keras_dp.gradients.rules.convolution_products import (
    patches,
    split_products,
)


@registry.register(keras.layers.Conv1D, registry.has_plain_kernel)
@registry.register(keras.layers.Conv2D, registry.has_plain_kernel)
@registry.register(keras.layers.Conv3D, registry.has_plain_kernel)
def convolution(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the kernel and the bias."""
    layer = call.layer
    images, cotangent = inputs_and_cotangent(call)
    records = kernel_records(layer, images, cotangent, layer.groups)
    return with_bias(call, [(layer.kernel, records)])


@registry.register(keras.layers.Conv1DTranspose, has_known_options)
@registry.register(keras.layers.Conv2DTranspose, has_known_options)
@registry.register(keras.layers.Conv3DTranspose, has_known_options)
def conv_transpose(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the kernel and the bias.

    The layer is the transpose of a convolution from its output to its input,
    with the kernel `[*taps, filters, channels]`. So the gradient is that of the
    kernel of this convolution: the cotangent takes the place of the images, and
    the input that of the cotangent.
    """
    inputs, cotangent = inputs_and_cotangent(call)
    records = kernel_records(call.layer, cotangent, inputs, groups=1)
    return with_bias(call, [(call.layer.kernel, records)])


def kernel_records(
    layer: keras.Layer,
    images: tf.Tensor,
    cotangent: tf.Tensor,
    groups: int,
    *,
    centers: bool = False,
) -> GradientRecords:
    """Returns the gradients of the kernel of a convolution of the images.

    Args:
        layer: The layer, which has kernel, strides, dilation and padding.
        images: `[batch, ..., channels]`.
        cotangent: The cotangent of the convolution, `[batch, ..., filters]`.
        groups: The number of groups of channels.
        centers: Whether gradients that are not built in blocks are made
            orthogonal to constants, filter by filter.
    """
    shape = tuple(layer.kernel.shape)
    moves = geometry(
        images.shape[1:-1],
        shape[:-2],
        layer.strides,
        layer.dilation_rate,
        layer.padding,
    )
    batch, *outputs, filters = cotangent.shape
    pixels, depth = math.prod(outputs), math.prod(shape[:-1])
    with tf.control_dependencies([cotangent]):
        # Without it, all layers would copy their images in the forward pass,
        # and keep the copies until their cotangents are known.
        images = tf.identity(images)
    splits = groups == 1 and math.prod(shape[:-2]) > 1
    if splits and cost_model.instantiates(
        batch, 1, pixels, depth, filters, images.dtype.size
    ):
        return SplitKernelRecords(
            split_products(images, cotangent, moves), shape
        )
    seen = patches(images, outputs, moves)
    seen = tf.reshape(seen, [batch, pixels, math.prod(shape[:-2]), groups, -1])
    left = tf.reshape(
        tf.transpose(seen, [0, 3, 1, 2, 4]), [batch, groups, pixels, depth]
    )
    if centers:
        left -= tf.reduce_mean(left, axis=-1, keepdims=True)
    right = tf.reshape(cotangent, [batch, pixels, groups, filters // groups])
    return OuterProductRecords(
        left,
        tf.transpose(right, [0, 2, 1, 3]),
        Arrangement(
            inner=(groups, depth, filters // groups),
            order=(1, 0, 2),
            shape=shape,
        ),
    )
