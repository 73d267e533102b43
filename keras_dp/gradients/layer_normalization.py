"""The rule of `LayerNormalization`."""

import keras
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients import rules
from keras_dp.gradients.records import MaterializedRecords, in_float


def _centres(layer: keras.Layer) -> bool:
    """Whether it is the ordinary layer, not its deprecated `rms_scaling`."""
    return not layer.rms_scaling


@rules.register(keras.layers.LayerNormalization, _centres)
def layer_normalization(call: rules.LayerCall) -> rules.Gradients:
    """Returns the gradients of gamma and beta.

    gamma multiplies the normalized input, which is computed again.
    """
    layer, (cotangent,) = call.layer, call.cotangents
    inputs, cotangent = in_float(call.inputs), in_float(cotangent)
    batch, rank = inputs.shape[0], inputs.shape.rank
    axes = [axis % rank for axis in layer.axis]
    if 0 in axes:
        raise UnsupportedLayerError(
            f"Layer {layer.path!r} normalizes over the batch axis, so that "
            "examples interact. Normalize over the other axes. "
            f"Received: axis={layer.axis!r}."
        )
    others = [axis for axis in range(1, rank) if axis not in axes]

    pairs: rules.Gradients = []
    if layer.gamma is not None:
        mean, variance = tf.nn.moments(inputs, axes, keepdims=True)
        scale = tf.math.rsqrt(variance + layer.epsilon)
        normalized = (inputs - mean) * scale
        gammas = tf.reduce_sum(cotangent * normalized, axis=others)
        gammas = tf.reshape(gammas, [batch, *layer.gamma.shape])
        pairs.append((layer.gamma, MaterializedRecords(gammas)))
    if layer.beta is not None:
        betas = tf.reduce_sum(cotangent, axis=others)
        betas = tf.reshape(betas, [batch, *layer.beta.shape])
        pairs.append((layer.beta, MaterializedRecords(betas)))
    return rules.trainable(pairs)
