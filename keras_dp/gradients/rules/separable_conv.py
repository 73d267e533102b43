"""The rules of `SeparableConv1D` and `SeparableConv2D`."""

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)
from keras_dp.gradients.rules.convolution_layers import (
    has_known_options,
    inputs_and_cotangent,
    with_bias,
)
from keras_dp.gradients.rules.depthwise_conv import depthwise_records


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
