"""The rule of `LayerNormalization`."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients import registry
from keras_dp.gradients.records.records import (
    MaterializedRecords,
    in_float,
)


@registry.register(keras.layers.LayerNormalization)
def layer_normalization(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of gamma and beta.

    gamma multiplies the normalized input, which is computed again.

    Raises:
        UnsupportedLayerError: The layer normalizes over the batch axis.
    """
    layer, (cotangent,) = call.layer, call.cotangents
    inputs, cotangent = in_float(call.inputs), in_float(cotangent)
    batch, rank = inputs.shape[0], inputs.shape.rank
    axes = check_axes(layer, layer.axis, rank)
    others = [axis for axis in range(1, rank) if axis not in axes]

    pairs: registry.Gradients = []
    if layer.gamma is not None:
        mean, variance = tf.nn.moments(inputs, axes, keepdims=True)
        scale = tf.math.rsqrt(variance + layer.epsilon)
        # With the deprecated `rms_scaling`, Keras does not subtract the mean.
        centred = inputs if layer.rms_scaling else inputs - mean
        gammas = tf.reduce_sum(centred * scale * cotangent, axis=others)
        gammas = tf.reshape(gammas, [batch, *layer.gamma.shape])
        pairs.append((layer.gamma, MaterializedRecords(gammas)))
    if layer.beta is not None:
        betas = tf.reduce_sum(cotangent, axis=others)
        betas = tf.reshape(betas, [batch, *layer.beta.shape])
        pairs.append((layer.beta, MaterializedRecords(betas)))
    return pairs


def check_axes(
    layer: keras.Layer, axes: int | Sequence[int], rank: int
) -> list[int]:
    """Returns the axes over which a layer normalizes, each at least 1.

    Raises:
        UnsupportedLayerError: The batch axis is among them.
    """
    given = [axes] if isinstance(axes, int) else axes
    found = [axis % rank for axis in given]
    if 0 in found:
        raise UnsupportedLayerError(
            f"Layer {layer.path!r} must not normalize over the batch axis, "
            f"because examples would interact. Received: axis={axes!r}. "
            "Normalize over the other axes."
        )
    return found
