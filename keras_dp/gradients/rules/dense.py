"""The rule of `Dense`, for inputs of any rank."""

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)
from keras_dp.gradients.records.records import (
    GradientRecords,
    MaterializedRecords,
    in_float,
)


@registry.register(keras.layers.Dense, registry.has_plain_kernel)
def dense(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of kernel `[in, out]` and bias `[out]`."""
    layer, (cotangent,) = call.layer, call.cotangents
    inputs = call.inputs
    batch, ins, outs = inputs.shape[0], inputs.shape[-1], cotangent.shape[-1]
    arrangement = Arrangement((ins, outs), (0, 1), (ins, outs))
    kernel = OuterProductRecords(
        tf.reshape(inputs, [batch, 1, -1, ins]),
        tf.reshape(cotangent, [batch, 1, -1, outs]),
        arrangement,
    )
    pairs: registry.Gradients = [(layer.kernel, kernel)]
    if layer.bias is not None:
        pairs.append((layer.bias, bias_records(cotangent, layer.bias)))
    return pairs


def bias_records(cotangent: tf.Tensor, bias: keras.Variable) -> GradientRecords:
    """Returns the gradients of a bias that is broadcast over the output.

    Args:
        cotangent: The cotangent of the output, `[batch, ...]`.
        bias: The bias. Its shape broadcasts against the last axes of the
            output.
    """
    cotangent = in_float(cotangent)
    rank = cotangent.shape.rank
    shape = [1] * (rank - 1 - len(bias.shape)) + list(bias.shape)
    axes = [axis for axis in range(1, rank) if shape[axis - 1] == 1]
    sums = tf.reduce_sum(cotangent, axis=axes)
    return MaterializedRecords(
        tf.reshape(sums, [cotangent.shape[0], *bias.shape])
    )
