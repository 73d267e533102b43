"""The rules of `DepthwiseConv1D` and `DepthwiseConv2D`."""

import math
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records.records import (
    MaterializedRecords,
    in_float,
)
from keras_dp.gradients.rules.convolution_bias import (
    convolution_bias_records,
)
from keras_dp.gradients.rules.convolution_phases import channels_last

# TensorFlow's filter gradient on CPU is fastest for about so many channels.
_FOLDED_CHANNELS = 1024


def has_known_options(layer: keras.Layer) -> bool:
    """Whether the layer's weights and padding are what its class documents."""
    return registry.has_plain_kernel(layer) and layer.padding in (
        "valid",
        "same",
    )


@registry.register(keras.layers.DepthwiseConv1D, has_known_options)
@registry.register(keras.layers.DepthwiseConv2D, has_known_options)
def depthwise_conv(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the kernel and the bias."""
    layer, (cotangent,) = call.layer, call.cotangents
    cotangent = channels_last(layer, cotangent)
    kernel = layer.kernel
    records = depthwise_records(
        layer,
        kernel,
        channels_last(layer, call.inputs),
        cotangent,
        static_shapes=call.static_shapes,
    )
    pairs: registry.Gradients = [(kernel, records)]
    if layer.bias is not None:
        bias = convolution_bias_records(layer, call.cotangents[0])
        pairs.append((layer.bias, bias))
    return registry.trainable(pairs)


def _folded(
    layer: keras.Layer,
    kernel: keras.Variable,
    images: tf.Tensor,
    cotangent: tf.Tensor,
) -> tf.Tensor:
    """Returns the gradients of some examples at a time, as channels of one."""
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
    return tf.reshape(tf.concat(parts, axis=0), [batch, *kernel.shape])


class _Axis(NamedTuple):
    """One spatial axis of a convolution.

    Attributes:
        length: Length of the input.
        outputs: Length of the output.
        taps: Length of the kernel.
        stride: Between outputs.
        dilation: Between taps.
        is_same: Whether the input is padded.
    """

    length: int
    outputs: int
    taps: int
    stride: int
    dilation: int
    is_same: bool

    @property
    def reach(self) -> int:
        """Distance of the first and the last tap, in strides."""
        return (self.taps - 1) * self.dilation // self.stride

    def padding(self) -> tuple[int, int]:
        """Returns how much is added before and behind, if negative cut off.

        Behind it, all phases become of length `outputs + reach`.
        """
        seen = (self.outputs - 1) * self.stride
        seen += (self.taps - 1) * self.dilation + 1
        before = max(seen - self.length, 0) // 2 if self.is_same else 0
        total = (self.outputs + self.reach) * self.stride
        return before, total - before - self.length


def depthwise_records(
    layer: keras.Layer,
    kernel: keras.Variable,
    inputs: tf.Tensor,
    cotangent: tf.Tensor,
    *,
    static_shapes: bool = True,
) -> MaterializedRecords:
    """Returns the gradients of the kernel of a depthwise convolution.

    Args:
        layer: It knows strides, dilation and padding.
        kernel: `[*taps, channels, multiplier]`, one or two spatial axes.
        inputs: `[batch, ..., channels]`.
        cotangent: `[batch, ..., channels * multiplier]`.
        static_shapes: False on CPU outside XLA, where TensorFlow's own filter
            gradient is fast.
    """
    inputs, cotangent = in_float(inputs), in_float(cotangent)
    *taps, _, multiplier = kernel.shape
    knows = len(taps) == 2 and set(layer.dilation_rate) == {1}
    if not static_shapes and knows and len(set(layer.strides)) == 1:
        return MaterializedRecords(_folded(layer, kernel, inputs, cotangent))
    axes = [
        _Axis(*numbers, layer.padding == "same")
        for numbers in zip(
            inputs.shape[1:-1],
            cotangent.shape[1:-1],
            taps,
            layer.strides,
            layer.dilation_rate,
            strict=True,
        )
    ]
    if len(axes) == 1:
        axes = [_Axis(1, 1, 1, 1, 1, False), *axes]
        inputs, cotangent = inputs[:, tf.newaxis], cotangent[:, tf.newaxis]
    if multiplier > 1:
        inputs = tf.repeat(inputs, multiplier, axis=-1)
    return MaterializedRecords(
        tf.reshape(
            _correlated(inputs, cotangent, *axes),
            [inputs.shape[0], *kernel.shape],
        )
    )


def _correlated(
    images: tf.Tensor, cotangent: tf.Tensor, rows: _Axis, columns: _Axis
) -> tf.Tensor:
    """Returns `[batch, taps, channels]`, the sums over positions per tap.

    Pixels that are a stride apart make up a phase. In a phase, what one tap
    sees of all outputs is one stretch of memory: the cotangent is padded to
    the width of the phase.
    """
    batch, channels = images.shape[0], images.shape[-1]
    phases = _phases(images, rows, columns)
    width = columns.outputs + columns.reach
    stretch = rows.outputs * width
    cotangent = tf.pad(cotangent, [[0, 0], [0, 0], [0, columns.reach], [0, 0]])
    cotangent = tf.reshape(cotangent, [batch, stretch, channels])
    ones = tf.ones([batch, 1, stretch], cotangent.dtype)
    sums = []
    for row in range(rows.taps):
        down, row_phase = divmod(row * rows.dilation, rows.stride)
        for column in range(columns.taps):
            right, phase = divmod(column * columns.dilation, columns.stride)
            start = down * width + right
            seen = phases[row_phase][phase][:, start : start + stretch]
            # Faster than `reduce_sum` over a middle axis.
            sums.append(tf.matmul(ones, seen * cotangent))
    return tf.concat(sums, axis=1)


def _phases(
    images: tf.Tensor, rows: _Axis, columns: _Axis
) -> list[list[tf.Tensor]]:
    """Returns `[batch, pixels, channels]` of each phase, rows before columns.

    The pixels of a phase are followed by as many zeros as the last tap is
    shifted to the right.
    """
    batch, channels = images.shape[0], images.shape[-1]
    images = _padded(images, 1, rows.padding())
    images = _padded(images, 2, columns.padding())
    height = rows.outputs + rows.reach
    width = columns.outputs + columns.reach
    split = tf.reshape(
        images, [batch, height, rows.stride, width, columns.stride, channels]
    )

    def phase(row: int, column: int) -> tf.Tensor:
        pixels = split[:, :, row, :, column]
        pixels = tf.reshape(pixels, [batch, height * width, channels])
        return tf.pad(pixels, [[0, 0], [0, columns.reach], [0, 0]])

    return [
        [phase(row, column) for column in range(columns.stride)]
        for row in range(rows.stride)
    ]


def _padded(
    images: tf.Tensor, axis: int, padding: tuple[int, int]
) -> tf.Tensor:
    """Returns the images with zeros added, or cut off behind."""
    before, after = padding
    images = images[
        (slice(None),) * axis + (slice(images.shape[axis] + min(after, 0)),)
    ]
    paddings = [[0, 0]] * images.shape.rank
    paddings[axis] = [before, max(after, 0)]
    return tf.pad(images, paddings)
