"""The rule of `PReLU`."""

import keras
import tensorflow as tf

from keras_dp.gradients import rules
from keras_dp.gradients.dense import bias_records
from keras_dp.gradients.records import in_float


@rules.register(keras.layers.PReLU)
def prelu(call: rules.LayerCall) -> rules.Gradients:
    """Returns the gradient of alpha, which multiplies what is negative."""
    layer, (cotangent,) = call.layer, call.cotangents
    negative = tf.minimum(in_float(call.inputs), 0)
    products = in_float(cotangent) * negative
    return rules.trainable([(layer.alpha, bias_records(products, layer.alpha))])
