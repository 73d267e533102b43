"""The rule of `Dense` and `EinsumDense`, and of biases."""

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records.contractions import Axes, contraction
from keras_dp.gradients.records.records import (
    GradientRecords,
    MaterializedRecords,
    in_float,
)


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


def equation_of(layer: keras.Layer) -> tuple[str, str, str]:
    """Returns the axes of inputs, kernel and outputs, without spaces."""
    equation = getattr(layer, "equation", "...a,ab->...b").replace(" ", "")
    operands, outputs = equation.split("->")
    inputs, kernel = operands.split(",")
    return inputs, kernel, outputs


def _axes_of(layer: keras.Layer, rank: int | None) -> Axes:
    """Returns the axes of a layer, with letters for `...`.

    If the rank of the input is `None`, `...` stands for two axes.
    """
    equation = equation_of(layer)
    named = len(equation[0].replace("...", ""))
    elided = 2 if rank is None else rank - named
    free = [axis for axis in _SPARE_AXES if axis not in "".join(equation)]
    dots = "".join(free[:elided]) if "..." in equation[0] else ""
    return Axes(*(each.replace("...", dots) for each in equation))


def is_contraction(layer: keras.Layer) -> bool:
    """Whether the rule supports the weights and the equation of a layer."""
    axes = _axes_of(layer, rank=None)
    return registry.has_plain_kernel(layer) and axes.is_contraction


@registry.register(keras.layers.Dense, is_contraction)
@registry.register(keras.layers.EinsumDense, is_contraction)
def dense(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the kernel and the bias."""
    layer, (cotangent,) = call.layer, call.cotangents
    axes = _axes_of(layer, call.inputs.shape.rank)
    shape = tuple(layer.kernel.shape)
    records = contraction(call.inputs, cotangent, axes, shape)
    pairs: registry.Gradients = [(layer.kernel, records)]
    if layer.bias is not None:
        pairs.append((layer.bias, bias_records(cotangent, layer.bias)))
    return pairs
