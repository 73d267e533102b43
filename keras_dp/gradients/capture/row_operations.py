"""Operations of a graph that keep the examples of a batch apart.

A tensor is *arranged by examples* along an axis if this axis has `k * batch`
entries, of which those from `i * k` to `(i + 1) * k` belong to example `i`.
Along the first axis, an example lies in one piece of memory, so a reshape keeps
it together. Most operations are known for the first axis only.

An operation keeps examples apart if its outputs are arranged by examples
whenever some of its inputs are, and if the part of an example in them depends
on the part of this example in these inputs only. The derivative of such an
operation keeps examples apart, too.
"""

from collections.abc import Callable, Mapping, Set
from typing import Any

import tensorflow as tf

# Computes each entry of the output from the entries that are broadcast to it.
ON_ENTRIES = {
    "Abs",
    "Add",
    "AddV2",
    "Cast",
    "Cos",
    "Div",
    "DivNoNan",
    "Elu",
    "Equal",
    "Erf",
    "Erfc",
    "Exp",
    "Expm1",
    "Floor",
    "FloorDiv",
    "FloorMod",
    "Greater",
    "GreaterEqual",
    "Identity",
    "IsFinite",
    "IsInf",
    "IsNan",
    "LeakyRelu",
    "Less",
    "LessEqual",
    "Log",
    "Log1p",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "Maximum",
    "Minimum",
    "Mul",
    "MulNoNan",
    "Neg",
    "NotEqual",
    "Pow",
    "RealDiv",
    "Reciprocal",
    "Relu",
    "Relu6",
    "Round",
    "Rsqrt",
    "SelectV2",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Square",
    "SquaredDifference",
    "StopGradient",
    "Sub",
    "Tan",
    "Tanh",
    "Xdivy",
    "Xlogy",
}
# Changes the shape, and nothing in memory.
OF_SHAPE = {"ExpandDims", "Reshape", "Squeeze"}


def arranged_axis(
    operation: tf.Operation, arranged: Mapping[int, int], batch: int
) -> int | None:
    """Returns the axis along which the outputs are arranged by examples.

    `None` if the operation is not known to keep examples apart.

    Args:
        operation: The operation.
        arranged: For the place of each input that is arranged by examples, the
            axis along which it is.
        batch: The number of examples.
    """
    if has_own_gradient(operation):
        return None
    axis = _axis(operation, arranged)
    if axis is None:
        return None
    outputs = operation.outputs
    return axis if all(is_divided(x, batch, axis) for x in outputs) else None


def _axis(operation: tf.Operation, arranged: Mapping[int, int]) -> int | None:
    (axis, *others) = set(arranged.values())
    if others:
        return None
    if operation.type in _MOVING and set(arranged) == {0}:
        moved = _MOVING[operation.type](operation, axis)
        if moved is not None:
            return moved
    if operation.type in ON_ENTRIES:
        return axis if _on_entries(operation, set(arranged), axis) else None
    rule = _RULES.get(operation.type)
    if axis or rule is None:
        return None
    return 0 if rule(operation, set(arranged)) else None


def has_own_gradient(operation: tf.Operation) -> bool:
    """Whether a gradient was set for it, as by `tf.custom_gradient`."""
    return "_gradient_op_type" in operation.node_def.attr


def is_divided(tensor: tf.Tensor, batch: int, axis: int = 0) -> bool:
    """Whether an axis has the same number of entries for each example."""
    shape = tensor.shape
    if not shape.is_fully_defined() or shape.rank <= axis:
        return False
    return bool(shape[axis]) and shape[axis] % batch == 0


def einsum_specs(operation: tf.Operation) -> tuple[list[str], str] | None:
    """Returns the axes of the operands and of the result of an `Einsum`.

    `None` if axes are not all named, or if one stands twice in an operand.
    """
    equation = operation.get_attr("equation").decode()
    if "." in equation:
        return None
    operands, result = equation.split("->")
    specs = operands.split(",")
    if any(len(set(spec)) != len(spec) for spec in (*specs, result)):
        return None
    return specs, result


def _on_entries(
    operation: tf.Operation, arranged: Set[int], axis: int = 0
) -> bool:
    """The rule where inputs are broadcast to the shape of the output."""
    (output,) = operation.outputs
    return all(
        operation.inputs[place].shape.rank == output.shape.rank
        and operation.inputs[place].shape[axis] == output.shape[axis]
        for place in arranged
    )


def _with_batch_first(operation: tf.Operation, arranged: Set[int]) -> bool:
    """The rule of convolutions and poolings, in each data format."""
    return arranged == {0} and operation.inputs[0].shape.rank > 1


def _along_last(operation: tf.Operation, arranged: Set[int]) -> bool:
    return arranged == {0} and operation.inputs[0].shape.rank > 1


def _along(place: int) -> Callable[[tf.Operation, Set[int]], bool]:
    """Returns the rule of operations along axes that one input names."""

    def rule(operation: tf.Operation, arranged: Set[int]) -> bool:
        axes = _axes(operation.inputs[place], operation.inputs[0].shape.rank)
        return arranged == {0} and axes is not None and 0 not in axes

    return rule


def _matmul(operation: tf.Operation, arranged: Set[int]) -> bool:
    return arranged == {0} and not operation.get_attr("transpose_a")


def _batch_matmul(operation: tf.Operation, arranged: Set[int]) -> bool:
    return operation.outputs[0].shape.rank > 2 and _on_entries(
        operation, arranged
    )


def _einsum(operation: tf.Operation, arranged: Set[int]) -> bool:
    specs = einsum_specs(operation)
    if specs is None or not specs[1]:
        return False
    operands, result = specs
    return all(operands[place][:1] == result[0] for place in arranged)


def _concat(operation: tf.Operation, arranged: Set[int]) -> bool:
    axes = _axes(operation.inputs[-1], operation.outputs[0].shape.rank)
    last = len(operation.inputs) - 1
    return axes is not None and 0 not in axes and last not in arranged


def _pack(operation: tf.Operation, arranged: Set[int]) -> bool:
    del arranged
    return operation.get_attr("axis") % operation.outputs[0].shape.rank != 0


def _split(operation: tf.Operation, arranged: Set[int]) -> bool:
    axes = _axes(operation.inputs[0], operation.inputs[1].shape.rank)
    return arranged == {1} and axes is not None and 0 not in axes


def _slice(operation: tf.Operation, arranged: Set[int]) -> bool:
    begin = tf.get_static_value(operation.inputs[1])
    lengths = operation.inputs[0].shape[0], operation.outputs[0].shape[0]
    return (
        arranged == {0}
        and begin is not None
        and begin[0] == 0
        and lengths[0] == lengths[1]
    )


def _strided_slice(operation: tf.Operation, arranged: Set[int]) -> bool:
    begin, _, strides = map(tf.get_static_value, operation.inputs[1:4])
    if arranged != {0} or begin is None or strides is None or not len(begin):
        return False
    lengths = operation.inputs[0].shape[0], operation.outputs[0].shape[0]
    if lengths[0] != lengths[1]:
        return False
    masks = {
        name: operation.get_attr(f"{name}_mask")
        for name in ("begin", "ellipsis", "new_axis", "shrink_axis")
    }
    if masks["ellipsis"] & 1:  # Does it stand for the first axis?
        others = masks["new_axis"] & ((1 << len(begin)) - 2)
        named = len(begin) - 1 - int(others).bit_count()
        return named < operation.inputs[0].shape.rank
    first = begin[0] == 0 or bool(masks["begin"] & 1)
    others = masks["new_axis"] | masks["shrink_axis"]
    return bool(first and strides[0] == 1 and not others & 1)


def _gather(operation: tf.Operation, arranged: Set[int]) -> bool:
    axes = _axes(operation.inputs[2], operation.inputs[0].shape.rank)
    # An index out of range would reach the next example in a batched gather.
    if axes is None or operation.get_attr("batch_dims"):
        return False
    return arranged == {1} if axes == {0} else arranged == {0}


def _pad(operation: tf.Operation, arranged: Set[int]) -> bool:
    widths = tf.get_static_value(operation.inputs[1])
    return arranged == {0} and widths is not None and not any(widths[0])


def _tile(operation: tf.Operation, arranged: Set[int]) -> bool:
    return arranged == {0} and _on_entries(operation, arranged)


def _one_hot(operation: tf.Operation, arranged: Set[int]) -> bool:
    axis = operation.get_attr("axis") % operation.outputs[0].shape.rank
    return arranged == {0} and axis != 0


def _reshaped(operation: tf.Operation, axis: int) -> int | None:
    shapes = operation.inputs[0].shape, operation.outputs[0].shape
    if not all(shape.is_fully_defined() for shape in shapes):
        return None
    return axis if shapes[0][:axis] == shapes[1][:axis] else None


def _transposed(operation: tf.Operation, axis: int) -> int | None:
    order = tf.get_static_value(operation.inputs[1])
    return None if order is None else list(order).index(axis)


def _unpacked(operation: tf.Operation, axis: int) -> int | None:
    along = operation.get_attr("axis") % operation.inputs[0].shape.rank
    return None if along == axis else axis - (along < axis)


def _indexed(operation: tf.Operation, axis: int) -> int | None:
    """The axis after `x[i]`, where `i` is a number."""
    names = ("ellipsis", "new_axis", "begin", "end")
    others = any(operation.get_attr(f"{name}_mask") for name in names)
    is_index = operation.get_attr("shrink_axis_mask") == 1 and not others
    if not is_index or operation.inputs[1].shape[0] != 1 or not axis:
        return None
    return axis - 1


def _axes(tensor: tf.Tensor, rank: int) -> set[int] | None:
    """Returns the axes that a tensor names, `None` if they are not known."""
    named: Any = tf.get_static_value(tensor)
    if named is None:
        return None
    return {int(axis) % rank for axis in named.reshape(-1)}


_ALONG_AXES = (
    *("All", "Any", "ArgMax", "ArgMin", "Cumprod", "Cumsum", "Max", "Mean"),
    *("Min", "Prod", "ReverseV2", "Sum"),
)
_OF_IMAGES = (
    *("AvgPool", "AvgPool3D", "BiasAdd", "Conv2D", "Conv3D"),
    *("DepthwiseConv2dNative", "MaxPool", "MaxPool3D"),
)
# Operations on one tensor, which may be arranged along any axis.
_MOVING: dict[str, Callable[[tf.Operation, int], int | None]] = {
    **dict.fromkeys(OF_SHAPE, _reshaped),
    "StridedSlice": _indexed,
    "Transpose": _transposed,
    "Unpack": _unpacked,
}
# Operations on tensors that are arranged along the first axis.
_RULES: dict[str, Callable[[tf.Operation, Set[int]], bool]] = {
    **dict.fromkeys(_ALONG_AXES, _along(1)),
    **dict.fromkeys(_OF_IMAGES, _with_batch_first),
    **dict.fromkeys(["LogSoftmax", "Softmax", "TopKV2"], _along_last),
    **dict.fromkeys(["MirrorPad", "Pad", "PadV2"], _pad),
    "BatchMatMulV2": _batch_matmul,
    "BroadcastTo": _on_entries,
    "ConcatV2": _concat,
    "Einsum": _einsum,
    "GatherV2": _gather,
    "MatMul": _matmul,
    "OneHot": _one_hot,
    "Pack": _pack,
    "Roll": _along(2),
    "Slice": _slice,
    "Split": _split,
    "SplitV": _along(2),
    "StridedSlice": _strided_slice,
    "Tile": _tile,
}
# All operations that this file knows.
KNOWN = ON_ENTRIES | _MOVING.keys() | _RULES.keys()
