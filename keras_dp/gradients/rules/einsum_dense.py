"""The rule of `EinsumDense`, of which the attention layers consist."""

import keras

from keras_dp.gradients import registry
from keras_dp.gradients.records.contractions import Axes, contraction
from keras_dp.gradients.rules.dense import bias_records

_SPARE_AXES = "ZYXWVUTSRQPONMLKJIHGFEDCBA"


def _axes_of(layer: keras.Layer, rank: int | None) -> Axes:
    """Returns the axes of a layer, with letters for `...`.

    Args:
        layer: The layer.
        rank: The rank of the input. `None` takes `...` as two axes.
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
