"""The rules of `Dense` and `EinsumDense`, and of biases."""

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records.contractions import Axes, contraction
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

    Its shape broadcasts against the last axes of the output.
    """
    cotangent = in_float(cotangent)
    rank = cotangent.shape.rank
    shape = [1] * (rank - 1 - len(bias.shape)) + list(bias.shape)
    axes = [axis for axis in range(1, rank) if shape[axis - 1] == 1]
    sums = tf.reduce_sum(cotangent, axis=axes)
    return MaterializedRecords(
        tf.reshape(sums, [cotangent.shape[0], *bias.shape])
    )


_SPARE_AXES = "ZYXWVUTSRQPONMLKJIHGFEDCBA"


def _axes_of(layer: keras.Layer, rank: int | None) -> Axes:
    """Returns the axes of a layer, with letters for `...`.

    If the rank of the input is `None`, `...` stands for two axes.
    """
    operands, outputs = layer.equation.replace(" ", "").split("->")
    inputs, kernel = operands.split(",")
    named = len(inputs.replace("...", ""))
    elided = 2 if rank is None else rank - named
    free = [axis for axis in _SPARE_AXES if axis not in layer.equation]
    dots = "".join(free[:elided]) if "..." in inputs else ""
    return Axes(
        inputs.replace("...", dots), kernel, outputs.replace("...", dots)
    )


def is_contraction(layer: keras.Layer) -> bool:
    """Whether the rule supports the weights and the equation of a layer."""
    axes = _axes_of(layer, rank=None)
    return registry.has_plain_kernel(layer) and axes.is_contraction


@registry.register(keras.layers.EinsumDense, is_contraction)
def einsum_dense(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the kernel and the bias."""
    layer, (cotangent,) = call.layer, call.cotangents
    axes = _axes_of(layer, call.inputs.shape.rank)
    shape = tuple(layer.kernel.shape)
    records = contraction(call.inputs, cotangent, axes, shape)
    pairs: registry.Gradients = [(layer.kernel, records)]
    if layer.bias is not None:
        pairs.append((layer.bias, bias_records(cotangent, layer.bias)))
    return pairs
