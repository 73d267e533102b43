"""The rule of `GroupNormalization`."""

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records.records import (
    MaterializedRecords,
    in_float,
)
from keras_dp.gradients.rules.layer_normalization import check_axes


@registry.register(keras.layers.GroupNormalization)
def group_normalization(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of gamma and beta.

    gamma multiplies the normalized input. Its gradient for an example is
    `scale * sum(g * (x - mean))` over positions, and that of beta is `sum(g)`.
    The layer's own forward and backward pass compute `mean`, `scale` and `x -
    mean`, too. They are computed here by the same operations, so that
    TensorFlow joins these in a graph. The formula `sum(g * x) - mean * sum(g)`
    would cost no more, but is less accurate where the mean is large.

    Raises:
        UnsupportedLayerError: The layer normalizes over the batch axis.
    """
    layer, (cotangent,) = call.layer, call.cotangents
    inputs = call.inputs
    batch, rank = inputs.shape[0], inputs.shape.rank
    (axis,) = check_axes(layer, layer.axis, rank)
    shape = [-1, *inputs.shape[1:]]
    shape[axis : axis + 1] = [
        layer.groups,
        inputs.shape[axis] // layer.groups,
    ]
    inputs = in_float(tf.reshape(inputs, shape))
    cotangent = tf.reshape(in_float(cotangent), inputs.shape)
    others = [i for i in range(1, rank + 1) if i not in (axis, axis + 1)]
    betas = tf.reduce_sum(cotangent, axis=others, keepdims=True)

    pairs: registry.Gradients = []
    if layer.gamma is not None:
        reduced = [i for i in range(1, rank + 1) if i != axis]
        mean, variance = tf.nn.moments(inputs, reduced, keepdims=True)
        scale = tf.math.rsqrt(variance + layer.epsilon)
        products = (inputs - mean) * cotangent
        gammas = scale * tf.reduce_sum(products, axis=others, keepdims=True)
        gammas = tf.reshape(gammas, [batch, *layer.gamma.shape])
        pairs.append((layer.gamma, MaterializedRecords(gammas)))
    if layer.beta is not None:
        betas = tf.reshape(betas, [batch, *layer.beta.shape])
        pairs.append((layer.beta, MaterializedRecords(betas)))
    return pairs
