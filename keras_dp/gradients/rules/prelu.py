"""The rule of `PReLU`."""

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records.records import in_float
from keras_dp.gradients.rules.dense import bias_records


@registry.register(keras.layers.PReLU)
def prelu(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of alpha, which multiplies negative inputs."""
    layer, (cotangent,) = call.layer, call.cotangents
    negative = tf.minimum(in_float(call.inputs), 0)
    products = in_float(cotangent) * negative
    return [(layer.alpha, bias_records(products, layer.alpha))]
