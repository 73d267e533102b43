"""Gradients of kernels that are contracted with inputs."""

import itertools
import math
from typing import NamedTuple

import tensorflow as tf

from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)


class Axes(NamedTuple):
    """The axes of a contraction, one letter each, as in `tf.einsum`.

    The batch is first in `inputs` and `outputs`.
    """

    inputs: str
    kernel: str
    outputs: str

    @property
    def is_contraction(self) -> bool:
        """Whether the gradient of the kernel is a sum of outer products.

        No axis may stand twice in one operand. The first axis of inputs and
        outputs is the batch, which the kernel does not have. Each axis of the
        kernel is an axis of the inputs or of the outputs.
        """
        return (
            all(len(set(axes)) == len(axes) for axes in self)
            and self.inputs[0] == self.outputs[0]
            and self.inputs[0] not in self.kernel
            and set(self.kernel) <= set(self.inputs) | set(self.outputs)
        )


def contraction(
    inputs: tf.Tensor,
    cotangent: tf.Tensor,
    axes: Axes,
    shape: tuple[int, ...],
) -> OuterProductRecords:
    """Returns the gradients of a kernel.

    An axis of the kernel is also an axis of the inputs (contracted), of the
    outputs (created), or of both (one small kernel per position). Other axes
    after the batch are positions that share the kernel. If the outputs do not
    have one, the inputs are summed over it.

    `axes.is_contraction` must hold. `shape` is that of the variable, which the
    kernel is a reshape of.
    """
    ins, kernel, outs = axes
    rows = [axis for axis in kernel if axis in ins and axis in outs]
    lefts = [axis for axis in kernel if axis in ins and axis not in outs]
    rights = [axis for axis in kernel if axis not in ins]
    shared = [a for a in ins[1:] if a in outs and a not in kernel]
    sizes = dict(
        zip(ins + outs, [*inputs.shape, *cotangent.shape], strict=True)
    )

    inner = [*rows, *lefts, *rights]
    arrangement = Arrangement(
        inner=tuple(sizes[axis] for axis in inner),
        order=tuple(inner.index(axis) for axis in kernel),
        shape=shape,
    )
    return OuterProductRecords(
        _grouped(inputs, ins, [rows, shared, lefts]),
        _grouped(cotangent, outs, [rows, shared, rights]),
        arrangement,
    )


def _grouped(
    tensor: tf.Tensor, axes: str, groups: list[list[str]]
) -> tf.Tensor:
    """Returns `[batch, ...]` with one axis for each group of axes.

    An axis that is in no group is summed.
    """
    order = "".join([axes[0], *itertools.chain(*groups)])
    sizes = dict(zip(axes, tensor.shape, strict=True))
    if order != axes:
        tensor = tf.einsum(f"{axes}->{order}", tensor)
    return tf.reshape(
        tensor,
        [sizes[axes[0]]]
        + [math.prod(sizes[axis] for axis in group) for group in groups],
    )
