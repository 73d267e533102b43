"""The rule of `RMSNormalization`."""

import keras
import tensorflow as tf

from keras_dp.gradients import rules
from keras_dp.gradients.dense import bias_records
from keras_dp.gradients.layer_normalization import check_axes
from keras_dp.gradients.records import in_float


@rules.register(keras.layers.RMSNormalization)
def rms_normalization(call: rules.LayerCall) -> rules.Gradients:
    """Returns the gradient of the scale.

    It multiplies the normalized input, which is computed again. Keras
    broadcasts it against the last axes of the input, whatever the axes of
    normalization are.
    """
    layer, (cotangent,) = call.layer, call.cotangents
    inputs = in_float(call.args[0] if call.args else call.kwargs["x"])
    check_axes(layer, layer.axis, inputs.shape.rank)
    squares = tf.reduce_mean(tf.square(inputs), axis=layer.axis, keepdims=True)
    normalized = inputs * tf.math.rsqrt(squares + layer.epsilon)
    products = in_float(cotangent) * normalized
    return rules.trainable([(layer.scale, bias_records(products, layer.scale))])
