"""The rule of `Conv1D`, `Conv2D` and `Conv3D`, with all their options."""

import math

import keras
import tensorflow as tf
from typing_extensions import override

from keras_dp.gradients import registry
from keras_dp.gradients.records import cost_model
from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)
from keras_dp.gradients.records.records import (
    GradientRecords,
    finite_or,
    in_float,
    kept,
    scaled,
    weighted,
)
from keras_dp.gradients.records.split_kernel_records import SplitKernelRecords
from keras_dp.gradients.rules.convolution_bias import (
    convolution_bias_records,
)
from keras_dp.gradients.rules.convolution_phases import (
    Geometry,
    channels_last,
    geometry,
)
from keras_dp.gradients.rules.convolution_products import (
    patches,
    split_products,
)

# Values in a patch up to which a convolution copies them fastest.
_SMALL_PATCH = 128


@registry.register(keras.layers.Conv1D, registry.has_plain_kernel)
@registry.register(keras.layers.Conv2D, registry.has_plain_kernel)
@registry.register(keras.layers.Conv3D, registry.has_plain_kernel)
def convolution(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the kernel and the bias."""
    layer, (cotangent,) = call.layer, call.cotangents
    images = in_float(channels_last(layer, call.inputs))
    cotangent = in_float(channels_last(layer, cotangent))
    pairs: registry.Gradients = [
        (layer.kernel, _kernel_records(layer, images, cotangent))
    ]
    if layer.bias is not None:
        bias = convolution_bias_records(layer, call.cotangents[0])
        pairs.append((layer.bias, bias))
    return registry.trainable(pairs)


def _kernel_records(
    layer: keras.Layer, images: tf.Tensor, cotangent: tf.Tensor
) -> GradientRecords:
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
    splits = layer.groups == 1 and math.prod(shape[:-2]) > 1
    if splits and cost_model.instantiates(
        batch, 1, pixels, depth, filters, images.dtype.size
    ):
        return SplitKernelRecords(
            split_products(images, cotangent, moves), shape
        )
    return _PatchRecords(layer, images, cotangent, moves)


class _PatchRecords(OuterProductRecords):
    """Outer products of what each pixel saw and its cotangent."""

    def __init__(
        self,
        layer: keras.Layer,
        images: tf.Tensor,
        cotangent: tf.Tensor,
        moves: Geometry,
    ) -> None:
        self.layer, self.images, self.cotangent = layer, images, cotangent
        shape, groups = tuple(layer.kernel.shape), layer.groups
        batch, *outputs, filters = cotangent.shape
        pixels, taps = math.prod(outputs), math.prod(shape[:-2])
        right = tf.reshape(
            cotangent, [batch, pixels, groups, filters // groups]
        )
        super().__init__(
            _grouped_patches(layer, images, outputs, moves),
            tf.transpose(right, [0, 2, 1, 3]),
            Arrangement(
                inner=(groups, taps * shape[-2], filters // groups),
                order=(1, 0, 2),
                shape=shape,
            ),
        )

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        layer = self.layer
        # The filter gradient of TensorFlow on CPU knows none of these.
        special = (
            self.images.shape.rank != 4
            or layer.groups > 1
            or max(layer.dilation_rate) > 1
        )
        if self.instantiates or special:
            return super().weighted_sum(weights)

        def total(images: tf.Tensor, cotangent: tf.Tensor) -> tf.Tensor:
            return tf.raw_ops.Conv2DBackpropFilter(
                input=images,
                filter_sizes=layer.kernel.shape,
                out_backprop=cotangent,
                strides=[1, *layer.strides, 1],
                padding=layer.padding.upper(),
            )

        weights = tf.cast(weights, self.images.dtype)
        return finite_or(
            total(self.images, scaled(self.cotangent, weights)),
            lambda: total(
                kept(self.images, weights), weighted(self.cotangent, weights)
            ),
        )


def _grouped_patches(
    layer: keras.Layer,
    images: tf.Tensor,
    outputs: list[int],
    moves: Geometry,
) -> tf.Tensor:
    """Returns what each pixel saw, `[batch, groups, pixels, taps * ins]`."""
    shape, groups = tuple(layer.kernel.shape), layer.groups
    batch, ins = images.shape[0], images.shape[-1]
    pixels, taps = math.prod(outputs), math.prod(shape[:-2])
    plain = groups == 1 and layer.padding != "causal"
    if plain and taps > 1 and taps * ins <= _SMALL_PATCH:
        identity = tf.eye(taps * ins, dtype=images.dtype)
        seen = tf.nn.convolution(
            images,
            tf.reshape(identity, [*shape[:-2], ins, taps * ins]),
            strides=layer.strides,
            padding=layer.padding.upper(),
            dilations=layer.dilation_rate,
        )
        return tf.reshape(seen, [batch, 1, pixels, taps * ins])
    seen = patches(images, outputs, moves)
    seen = tf.reshape(seen, [batch, pixels, taps, groups, ins // groups])
    seen = tf.transpose(seen, [0, 3, 1, 2, 4])
    return tf.reshape(seen, [batch, groups, pixels, taps * ins // groups])
