"""The rule of `Conv2D`: strides, padding, dilation, groups, both formats."""

import keras
import tensorflow as tf
from typing_extensions import override

from keras_dp.gradients import rules
from keras_dp.gradients.dense import bias_records
from keras_dp.gradients.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)
from keras_dp.gradients.records import in_float, kept, weighted

# Values in a patch up to which copying by convolution is faster on CPU.
_SMALL_PATCH = 128


class _KernelRecords(OuterProductRecords):
    """Outer products of patches, summed without keeping the patches."""

    def __init__(
        self, layer: keras.Layer, images: tf.Tensor, cotangent: tf.Tensor
    ) -> None:
        self.layer = layer
        self.images, self.cotangent = in_float(images), in_float(cotangent)
        super().__init__(
            _patches(layer, self.images),
            _grouped(self.cotangent, layer.groups),
            _arrangement(layer),
        )

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        layer = self.layer
        # The filter gradient of TensorFlow on CPU knows neither.
        special = layer.groups > 1 or max(layer.dilation_rate) > 1
        if self.instantiates or special:
            return super().weighted_sum(weights)
        return tf.raw_ops.Conv2DBackpropFilter(
            input=kept(self.images, weights),
            filter_sizes=layer._kernel.shape,
            out_backprop=weighted(self.cotangent, weights),
            strides=[1, *layer.strides, 1],
            padding=layer.padding.upper(),
        )


@rules.register(keras.layers.Conv2D, rules.has_plain_kernel)
def conv2d(call: rules.LayerCall) -> rules.Gradients:
    """Returns the gradients of the kernel and the bias."""
    layer, (cotangent,) = call.layer, call.cotangents
    images = call.inputs
    if layer.data_format == "channels_first":
        images = tf.transpose(images, [0, 2, 3, 1])
        cotangent = tf.transpose(cotangent, [0, 2, 3, 1])
    records = _KernelRecords(layer, images, cotangent)
    pairs: rules.Gradients = [(layer._kernel, records)]
    if layer.bias is not None:
        pairs.append((layer.bias, bias_records(cotangent, layer.bias)))
    return rules.trainable(pairs)


def _patches(layer: keras.Layer, images: tf.Tensor) -> tf.Tensor:
    """Returns what each output pixel saw, `[batch, groups, pixels, ins]`."""
    height, width = layer.kernel_size
    depth = height * width * images.shape[-1]
    if depth <= _SMALL_PATCH:
        # A convolution that copies is faster than extraction.
        identity = tf.eye(depth, dtype=images.dtype)
        patches = tf.nn.conv2d(
            images,
            tf.reshape(identity, [height, width, images.shape[-1], depth]),
            strides=layer.strides,
            padding=layer.padding.upper(),
            dilations=layer.dilation_rate,
        )
    else:
        patches = tf.image.extract_patches(
            images,
            sizes=[1, height, width, 1],
            strides=[1, *layer.strides, 1],
            rates=[1, *layer.dilation_rate, 1],
            padding=layer.padding.upper(),
        )
    batch, rows, columns, depth = patches.shape
    channels = images.shape[-1] // layer.groups
    area = depth // images.shape[-1]
    patches = tf.reshape(
        patches, [batch, rows * columns, area, layer.groups, channels]
    )
    patches = tf.transpose(patches, [0, 3, 1, 2, 4])
    return tf.reshape(
        patches, [batch, layer.groups, rows * columns, area * channels]
    )


def _grouped(cotangent: tf.Tensor, groups: int) -> tf.Tensor:
    """Returns the cotangent as `[batch, groups, pixels, outs]`."""
    batch, rows, columns, filters = cotangent.shape
    cotangent = tf.reshape(
        cotangent, [batch, rows * columns, groups, filters // groups]
    )
    return tf.transpose(cotangent, [0, 2, 1, 3])


def _arrangement(layer: keras.Layer) -> Arrangement:
    *area, channels, filters = layer._kernel.shape
    ins = area[0] * area[1] * channels
    return Arrangement(
        inner=(layer.groups, ins, filters // layer.groups),
        order=(1, 0, 2),
        shape=(*area, channels, filters),
    )
