"""The rule of `RMSNormalization`."""

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records.records import in_float
from keras_dp.gradients.rules.dense import bias_records
from keras_dp.gradients.rules.layer_normalization import check_axes


@registry.register(keras.layers.RMSNormalization)
def rms_normalization(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the scale.

    The scale multiplies the normalized input, which is computed again. Keras
    broadcasts the scale against the last axes of the input, whatever the axes
    of normalization are.

    Raises:
        UnsupportedLayerError: The layer normalizes over the batch axis.
    """
    layer, (cotangent,) = call.layer, call.cotangents
    inputs = in_float(call.args[0] if call.args else call.kwargs["x"])
    check_axes(layer, layer.axis, inputs.shape.rank)
    squares = tf.reduce_mean(tf.square(inputs), axis=layer.axis, keepdims=True)
    normalized = inputs * tf.math.rsqrt(squares + layer.epsilon)
    products = in_float(cotangent) * normalized
    return [(layer.scale, bias_records(products, layer.scale))]
