"""The rule of `EinsumDense`, of which the attention layers consist."""

import itertools
import math

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)
from keras_dp.gradients.rules.dense import bias_records

_SPARE_AXES = "ZYXWVUTSRQPONMLKJIHGFEDCBA"


def _specs(layer: keras.Layer, rank: int | None) -> tuple[str, str, str]:
    """Returns the letters of input, kernel and output, with letters for `...`.

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
    return inputs.replace("...", dots), kernel, outputs.replace("...", dots)


def is_contraction(layer: keras.Layer) -> bool:
    """Whether the rule supports the equation of a layer.

    No axis may stand twice in one operand. The first axis of input and output
    is the batch, which the kernel does not have. Each axis of the kernel is an
    axis of the input or of the output.
    """
    inputs, kernel, outputs = _specs(layer, rank=None)
    return (
        registry.has_plain_kernel(layer)
        and all(len(set(s)) == len(s) for s in (inputs, kernel, outputs))
        and inputs[0] == outputs[0]
        and inputs[0] not in kernel
        and set(kernel) <= set(inputs) | set(outputs)
    )


@registry.register(keras.layers.EinsumDense, is_contraction)
def einsum_dense(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the kernel and the bias.

    An axis of the kernel is also an axis of the input (contracted), of the
    output (created), or of both (one small kernel per position). Other axes
    after the batch are positions that share the kernel. If the output does not
    have one, the input is summed over it.
    """
    layer, (cotangent,) = call.layer, call.cotangents
    inputs = call.inputs
    ins, kernel, outs = _specs(layer, inputs.shape.rank)
    rows = [axis for axis in kernel if axis in ins and axis in outs]
    lefts = [axis for axis in kernel if axis in ins and axis not in outs]
    rights = [axis for axis in kernel if axis not in ins]
    shared = [a for a in ins[1:] if a in outs and a not in kernel]
    sizes = dict(zip(kernel, layer.kernel.shape, strict=True))

    inner = [*rows, *lefts, *rights]
    arrangement = Arrangement(
        inner=tuple(sizes[axis] for axis in inner),
        order=tuple(inner.index(axis) for axis in kernel),
        shape=tuple(layer.kernel.shape),
    )
    records = OuterProductRecords(
        _grouped(inputs, ins, [rows, shared, lefts]),
        _grouped(cotangent, outs, [rows, shared, rights]),
        arrangement,
    )
    pairs: registry.Gradients = [(layer.kernel, records)]
    if layer.bias is not None:
        pairs.append((layer.bias, bias_records(cotangent, layer.bias)))
    return pairs


def _grouped(
    tensor: tf.Tensor, axes: str, groups: list[list[str]]
) -> tf.Tensor:
    """Returns `[batch, ...]` with one axis for each group of axes.

    Args:
        tensor: The input or the cotangent.
        axes: The letters of its axes, the batch first. An axis that is in no
            group is summed.
        groups: The axes of each group, in order.
    """
    order = "".join([axes[0], *itertools.chain(*groups)])
    sizes = dict(zip(axes, tensor.shape, strict=True))
    return tf.reshape(
        tf.einsum(f"{axes}->{order}", tensor),
        [sizes[axes[0]]]
        + [math.prod(sizes[axis] for axis in group) for group in groups],
    )
