"""The rules of convolutions: plain, transposed, depthwise and separable."""

import math

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records import cost_model
from keras_dp.gradients.records.convolution_records import (
    SplitKernelRecords,
    StandardizedRecords,
)
from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)
from keras_dp.gradients.records.records import (
    GradientRecords,
    MaterializedRecords,
    in_float,
)
from keras_dp.gradients.rules.convolution_taps import (
    all_runs,
    geometry,
    patches,
    phases_of,
    seen,
    split_products,
)
from keras_dp.layers.standardized_conv2d import (
    StandardizedConv2D,
    standardized,
)


def has_known_options(layer: keras.Layer) -> bool:
    """Whether the layer has a plain kernel, and "valid" or "same" padding."""
    return registry.has_plain_kernel(layer) and layer.padding in (
        "valid",
        "same",
    )


def channels_last(layer: keras.Layer, tensor: tf.Tensor) -> tf.Tensor:
    """Returns an input or output of a layer as `[batch, ..., channels]`."""
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
    """Adds the gradients of the bias, if there is one."""
    layer, (cotangent,) = call.layer, call.cotangents
    if layer.bias is None:
        return kernels
    bias = convolution_bias_records(layer, cotangent)
    return [*kernels, (layer.bias, bias)]


def convolution_bias_records(
    layer: keras.Layer, cotangent: tf.Tensor
) -> GradientRecords:
    """Returns the gradients of the bias, by the axis along which it is added.

    The layer is a convolution of any kind. The cotangent of its output is in
    the layer's data format.
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

    The images are `[batch, ..., channels]`, and the cotangent of the
    convolution `[batch, ..., filters]`. If `centers`, gradients that are not
    built in blocks are made orthogonal to constants, filter by filter.
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

    The kernel is `[*taps, channels, multiplier]`, with one or two spatial axes.
    The inputs are `[batch, ..., channels]`, in float32 or wider. The cotangent
    is `[batch, ..., channels * multiplier]`, of the same dtype. `static_shapes`
    is false on CPU outside XLA, where TensorFlow's own filter gradient is fast
    and is used if it supports the options.
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


@registry.register(keras.layers.SeparableConv1D, has_known_options)
@registry.register(keras.layers.SeparableConv2D, has_known_options)
def separable_conv(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of both kernels and the bias.

    The tensor between the two convolutions is computed again. The second
    convolution is a product of matrices at every position, so that the
    cotangent of this tensor is that of the output times the transposed kernel.
    """
    layer, kernel = call.layer, call.layer.pointwise_kernel
    # In float16, the gradient of the first kernel would be wrong.
    inputs, cotangent = inputs_and_cotangent(call)
    between = keras.ops.depthwise_conv(
        inputs,
        tf.cast(layer.depthwise_kernel.value, inputs.dtype),
        strides=layer.strides,
        padding=layer.padding,
        data_format="channels_last",
        dilation_rate=layer.dilation_rate,
    )
    batch, (channels, filters) = inputs.shape[0], kernel.shape[-2:]
    pointwise = OuterProductRecords(
        tf.reshape(between, [batch, 1, -1, channels]),
        tf.reshape(cotangent, [batch, 1, -1, filters]),
        Arrangement((channels, filters), (0, 1), tuple(kernel.shape)),
    )
    weights = tf.reshape(
        tf.cast(kernel.value, cotangent.dtype), [channels, filters]
    )
    depthwise = depthwise_records(
        layer,
        layer.depthwise_kernel,
        inputs,
        tf.einsum("...f,cf->...c", cotangent, weights),
        static_shapes=call.static_shapes,
    )
    return with_bias(
        call, [(layer.depthwise_kernel, depthwise), (kernel, pointwise)]
    )


@registry.register(
    StandardizedConv2D,
    lambda layer: has_known_options(layer) and layer.groups == 1,
)
def standardized_conv(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the kernel and the bias."""
    layer = call.layer
    images, cotangent = inputs_and_cotangent(call)
    plain, inverse_lengths = standardized(in_float(layer.kernel.value))
    records = kernel_records(
        layer, images, cotangent * inverse_lengths, groups=1, centers=True
    )
    found = StandardizedRecords(records, plain)
    return with_bias(call, [(layer.kernel, found)])
