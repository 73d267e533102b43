"""The operations of TensorFlow that the gradients know, by what they do.

Graphs are read in four places: variable writes and other side effects
(`unsupported/`), rows that are not the examples (`capture/batch_axis.py`), the
proof that examples are kept apart (`capture/examples_apart.py`), and the
gradients of layers without a rule (`capture/graph_rules.py`). All names of
operations stand here, as seen in TensorFlow 2.21. An operation that stands in
no table is never trusted.

A tensor is *arranged by examples* along an axis if this axis has `k * batch`
entries, of which those from `i * k` to `(i + 1) * k` belong to example `i`.

An operation keeps examples apart if its outputs are arranged by examples
whenever some of its inputs are, and if the part of an example in them depends
on the part of this example in these inputs only. The derivative of such an
operation keeps examples apart, too.
"""

import math
import string
from collections.abc import Callable, Mapping, Set
from typing import Any

import tensorflow as tf

# Computes each entry of the output from the entries that are broadcast to it.
ON_ENTRIES = {
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "AddN",
    "AddV2",
    "Angle",
    "AsString",
    "Asin",
    "Asinh",
    "Atan",
    "Atan2",
    "Atanh",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Bucketize",
    "Cast",
    "Ceil",
    "ClipByValue",
    "Complex",
    "ComplexAbs",
    "Conj",
    "Cos",
    "Cosh",
    "Digamma",
    "Div",
    "DivNoNan",
    "Elu",
    "EluGrad",
    "EnsureShape",
    "Equal",
    "Erf",
    "Erfc",
    "Erfinv",
    "Exp",
    "Expm1",
    "Floor",
    "FloorDiv",
    "FloorMod",
    "Greater",
    "GreaterEqual",
    "Identity",
    "Imag",
    "Invert",
    "IsFinite",
    "IsInf",
    "IsNan",
    "LeakyRelu",
    "LeakyReluGrad",
    "LeftShift",
    "Less",
    "LessEqual",
    "Lgamma",
    "Log",
    "Log1p",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "Maximum",
    "Minimum",
    "Mod",
    "Mul",
    "MulNoNan",
    "Neg",
    "NextAfter",
    "NotEqual",
    "Pow",
    "Real",
    "RealDiv",
    "Reciprocal",
    "ReciprocalGrad",
    "RegexFullMatch",
    "RegexReplace",
    "Relu",
    "Relu6",
    "Relu6Grad",
    "ReluGrad",
    "RightShift",
    "Rint",
    "Round",
    "Rsqrt",
    "RsqrtGrad",
    "SelectV2",
    "Selu",
    "SeluGrad",
    "Sigmoid",
    "SigmoidGrad",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "SoftplusGrad",
    "Softsign",
    "SoftsignGrad",
    "Sqrt",
    "SqrtGrad",
    "Square",
    "SquaredDifference",
    "StaticRegexFullMatch",
    "StaticRegexReplace",
    "StopGradient",
    "StringLower",
    "StringStrip",
    "StringToHashBucketFast",
    "StringToHashBucketStrong",
    "StringUpper",
    "Sub",
    "Tan",
    "Tanh",
    "TanhGrad",
    "TruncateDiv",
    "TruncateMod",
    "Xdivy",
    "Xlogy",
}
# Side effects. Only these stateful operations may run while a model is called.
READS = {
    "LookupTableExportV2",
    "LookupTableFindV2",
    "LookupTableSizeV2",
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VarHandleOp",
    "VarIsInitializedOp",
    "VariableShape",
}
# They end the step, or do nothing.
ASSERTIONS = {"Assert", "CheckNumerics", "CheckNumericsV2"}
# Their state counts draws and holds no data.
DRAWS = {
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "StatelessRandomGetAlg",
    "TruncatedNormal",
}
# They are stateful because of the dropout inside, which Keras does not use.
RECURRENCES = {
    *("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"),
    *("CudnnRNNBackprop", "CudnnRNNBackpropV2", "CudnnRNNBackpropV3"),
}
# It makes a tensor to write to. It is stateful so that each call makes one.
MEMORY = {"Empty"}
# It runs Python, which may keep anything, although it is declared stateless.
PYTHON = {"PyFuncStateless"}
ASSIGNMENTS = {"AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp"}

# Calls of functions, which are read, too.
CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
CONDITIONS = {"If", "StatelessIf"}
CASES = {"Case", "StatelessCase"}
LOOPS = {"StatelessWhile", "While"}
COMPILED = {"XlaCallModule"}
# Loops of TensorFlow 1, in which an operation can be among its own inputs.
OLD_LOOPS = {"Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch"}

# Sources of values.
CONSTANT = "Const"
PLACEHOLDERS = {"Placeholder", "PlaceholderWithDefault"}

# Their results tell the shapes of their inputs. No operation that is known
# makes a shape of the entries of an arranged tensor.
OF_SHAPES = {"OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"}
# Each row of the result is placed by an index, or is a number of the shape.
PLACING = {
    *("RaggedTensorToTensor", "ScatterNd", "SparseTensorDenseMatMul"),
    *("SparseToDense", "TensorScatterAdd", "TensorScatterMax"),
    *("TensorScatterMin", "TensorScatterSub", "TensorScatterUpdate"),
    *("UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd"),
    *("UnsortedSegmentSum", "Rank", "Shape", "Size"),
}
TRANSPOSE = "Transpose"
# It passes several tensors on, often with a gradient of its own.
SEVERAL = "IdentityN"

# Lists of tensors: the places of the inputs that may be arranged by examples,
# and by how much the axis of the examples is another one afterwards.
ON_LISTS = {
    "Identity": ({0}, 0),
    "TensorListFromTensor": ({0}, -1),
    "TensorListGather": ({0}, 1),
    "TensorListGetItem": ({0}, 0),
    "TensorListPushBack": ({0, 1}, 0),
    "TensorListSetItem": ({0, 2}, 0),
    "TensorListStack": ({0}, 1),
}
LENGTH_OF_LIST = "TensorListLength"

# Operations that use weights. Those of the first table broadcast them. It has
# the derivative with respect to each input; `None` stands for the other input.
BROADCAST: dict[str, tuple[float | None, float | None]] = {
    "Add": (1, 1),
    "AddV2": (1, 1),
    "BiasAdd": (1, 1),
    "Mul": (None, None),
    "Sub": (1, -1),
}
BIAS = "BiasAdd"
COPIES = {"BroadcastTo", "Tile"}
CONTRACTION = "Einsum"
CONVOLUTION = "Conv2D"
# Products with a matrix on the right, and the attribute that transposes it.
PRODUCTS = {"BatchMatMulV2": "adj_y", "MatMul": "transpose_b"}
# TensorFlow 2.21 loses memory in some of these (`capture/mapped_examples.py`).
BATCHED_PRODUCT = "BatchMatMulV2"

# Stands for a first axis of `k * batch` entries, of which `i` and every
# `batch`-th after it belong to example `i`.
INTERLEAVED = -1
# Changes the shape, and nothing in memory.
OF_SHAPE = {"ExpandDims", "Reshape", "Squeeze"}
# Moves entries, and changes none.
MOVES = OF_SHAPE | {"Cast", "Identity", TRANSPOSE}

# A rule maps an operation, the places of its inputs that are arranged by
# examples, and the axis along which they are. It returns the axis along which
# the outputs are, or `None` if nothing is known.
_Rule = Callable[[tf.Operation, Set[int], int], int | None]


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
    tensors = [*operation.inputs, *operation.outputs]
    if has_own_gradient(operation) or any(
        each.shape.rank is None for each in tensors
    ):
        return None
    (axis, *others) = set(arranged.values())
    if others:
        return None
    after = _axis(operation, set(arranged), axis, batch)
    if after is None:
        return None
    outputs = operation.outputs
    return after if all(is_divided(x, batch, after) for x in outputs) else None


def _axis(
    operation: tf.Operation, places: Set[int], axis: int, batch: int
) -> int | None:
    if operation.type in _INTERLEAVING and places == {0}:
        moved = _INTERLEAVING[operation.type](operation, axis, batch)
        if moved is not None:
            return moved
    rule = _RULES.get(operation.type)
    if rule is None:
        return None
    if axis == INTERLEAVED:
        # All but a reshape treat each entry of the axis as they treat others.
        alone = None if rule is _reshaped else rule(operation, places, 0)
        return None if alone != 0 else INTERLEAVED
    return rule(operation, places, axis)


def has_own_gradient(operation: tf.Operation) -> bool:
    """Whether a gradient was set for it, as by `tf.custom_gradient`."""
    return "_gradient_op_type" in operation.node_def.attr


def is_divided(tensor: tf.Tensor, batch: int, axis: int = 0) -> bool:
    """Whether an axis has the same number of entries for each example."""
    shape, axis = tensor.shape, max(axis, 0)
    if shape.rank is None or shape.rank <= axis:
        return False
    return bool(shape[axis]) and shape[axis] % batch == 0


def einsum_specs(operation: tf.Operation) -> tuple[list[str], str] | None:
    """Returns the axes of the operands and of the result of an `Einsum`.

    `None` if an axis stands twice in an operand, or is broadcast.
    """
    equation = operation.get_attr("equation").decode()
    operands, result = equation.split("->")
    tensors = [*operation.inputs, *operation.outputs]
    letters = iter(sorted(set(string.ascii_letters) - set(equation)))
    rest = "".join(next(letters) for _ in range(8))
    specs = []
    for spec, tensor in zip(
        [*operands.split(","), result], tensors, strict=True
    ):
        others = tensor.shape.rank - len(spec) + 3
        named = rest[len(rest) - others :] if "..." in spec else ""
        specs.append(spec.replace("...", named))
    lengths: dict[str, int] = {}
    for spec, tensor in zip(specs, tensors, strict=True):
        if len(set(spec)) != len(spec):
            return None
        for letter, length in zip(spec, tensor.shape, strict=True):
            if lengths.setdefault(letter, length) != length:
                return None
    return specs[:-1], specs[-1]


def _on_entries(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    """The rule where inputs are broadcast to the shape of the output."""
    output = operation.outputs[0].shape
    shapes = [operation.inputs[place].shape for place in places]
    is_kept = all(
        shape.rank == output.rank and shape[axis] == output[axis]
        for shape in shapes
    )
    return axis if is_kept else None


def _with_batch_first(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    """The rule of convolutions and poolings, in each data format."""
    is_first = places == {0} and operation.inputs[0].shape.rank > 1
    return 0 if is_first and axis == 0 else None


def _transposed_convolution(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    return 0 if places == {2} and axis == 0 else None


def _along_last(count: int) -> _Rule:
    """Returns the rule of operations along the last axes of one tensor."""

    def rule(
        operation: tf.Operation, places: Set[int], axis: int
    ) -> int | None:
        is_other = axis < operation.inputs[0].shape.rank - count
        return axis if places == {0} and is_other else None

    return rule


def _along(place: int, of: int = 0) -> _Rule:
    """Returns the rule of operations along axes that one input names.

    Args:
        place: The place of the input that names them.
        of: The place of the tensor whose axes they are.
    """

    def rule(
        operation: tf.Operation, places: Set[int], axis: int
    ) -> int | None:
        axes = _axes(operation.inputs[place], operation.inputs[of].shape.rank)
        return axis if places == {of} and axes and axis not in axes else None

    return rule


def _reduced(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    axes = _axes(operation.inputs[1], operation.inputs[0].shape.rank)
    if places != {0} or axes is None or axis in axes:
        return None
    if operation.inputs[0].shape.rank == operation.outputs[0].shape.rank:
        return axis
    return axis - sum(each < axis for each in axes)


def _matmul(operation: tf.Operation, places: Set[int], axis: int) -> int | None:
    is_first = places == {0} and not operation.get_attr("transpose_a")
    return 0 if is_first and axis == 0 else None


def _batch_matmul(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    rows = operation.outputs[0].shape.rank - 2
    is_of_rows = places == {0} and not operation.get_attr("adj_x")
    is_kept = axis < rows or (axis == rows and is_of_rows)
    return _on_entries(operation, places, axis) if is_kept else None


def _einsum(operation: tf.Operation, places: Set[int], axis: int) -> int | None:
    specs = einsum_specs(operation)
    if specs is None:
        return None
    operands, result = specs
    (letter, *others) = {operands[place][axis] for place in places}
    return None if others or letter not in result else result.index(letter)


def _concat(operation: tf.Operation, places: Set[int], axis: int) -> int | None:
    axes = _axes(operation.inputs[-1], operation.outputs[0].shape.rank)
    last = len(operation.inputs) - 1
    return axis if axes and axis not in axes and last not in places else None


def _pack(operation: tf.Operation, places: Set[int], axis: int) -> int:
    del places
    along = operation.get_attr("axis") % operation.outputs[0].shape.rank
    return axis + (along <= axis)


def _unpacked(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    del places
    along = operation.get_attr("axis") % operation.inputs[0].shape.rank
    return None if along == axis else axis - (along < axis)


def _slice(operation: tf.Operation, places: Set[int], axis: int) -> int | None:
    begin = tf.get_static_value(operation.inputs[1], partial=True)
    lengths = operation.inputs[0].shape[axis], operation.outputs[0].shape[axis]
    is_whole = begin is not None and begin[axis] == 0
    is_whole = is_whole and lengths[0] == lengths[1]
    return axis if places == {0} and is_whole else None


def _strided_slice(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    begin, _, strides = (
        tf.get_static_value(each, partial=True)
        for each in operation.inputs[1:4]
    )
    if places != {0} or begin is None or strides is None:
        return None
    masks = {
        name: operation.get_attr(f"{name}_mask")
        for name in ("begin", "ellipsis", "new_axis", "shrink_axis")
    }
    shape = operation.inputs[0].shape
    count = len(begin)

    def has(name: str, place: int) -> bool:
        return bool(masks[name] >> place & 1)

    named = sum(
        not has("ellipsis", i) and not has("new_axis", i) for i in range(count)
    )
    before = after = 0
    for place in range(count):
        if has("ellipsis", place):
            skipped = shape.rank - named
            if before <= axis < before + skipped:
                return after + axis - before
            before, after = before + skipped, after + skipped
        elif has("new_axis", place):
            after += 1
        elif before == axis:
            is_whole = begin[place] == 0 or has("begin", place)
            is_whole = is_whole and strides[place] == 1
            if not is_whole or has("shrink_axis", place):
                return None
            length = operation.outputs[0].shape[after]
            return after if length == shape[axis] else None
        else:
            before, after = before + 1, after + (not has("shrink_axis", place))
    return after + axis - before


def _gather(operation: tf.Operation, places: Set[int], axis: int) -> int | None:
    values, indices, named = operation.inputs
    axes = _axes(named, values.shape.rank)
    # An index out of range would reach the next example in a batched gather.
    if axes is None or operation.get_attr("batch_dims"):
        return None
    (along,) = axes
    if places == {1}:
        return along + axis
    if places != {0} or axis == along or indices.shape.rank is None:
        return None
    return axis if axis < along else axis + indices.shape.rank - 1


def _gather_nd(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    is_other = axis < operation.inputs[1].shape.rank - 1
    return axis if places == {1} and is_other else None


def _of_keys(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    """The rule of looking up each key in a table."""
    return axis if places == {1} else None


def _projected_images(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    """The rule where each image, or all, have a transform."""
    images, transforms = (each.shape for each in operation.inputs[:2])
    is_known = 0 in places and places <= {0, 1} and axis == 0
    if 1 in places and images[0] != transforms[0]:
        return None
    return 0 if is_known else None


def _resource_gather(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    return None if operation.get_attr("batch_dims") or places != {1} else axis


def _pad(operation: tf.Operation, places: Set[int], axis: int) -> int | None:
    widths = tf.get_static_value(operation.inputs[1])
    is_apart = widths is not None and not any(widths[axis])
    return axis if places == {0} and is_apart else None


def _first_on_entries(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    return _on_entries(operation, places, axis) if places == {0} else None


def _one_hot(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    along = operation.get_attr("axis") % operation.outputs[0].shape.rank
    return axis + (along <= axis) if places == {0} else None


def _reshaped(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    """The rule of reshapes.

    The axes before the examples stand for pieces of memory. If there are as
    many pieces afterwards, each has the same part of an example.
    """
    shapes = operation.inputs[0].shape, operation.outputs[0].shape
    if places != {0} or not all(each.is_fully_defined() for each in shapes):
        return None
    before, after = (tuple(each) for each in shapes)
    pieces = math.prod(before[:axis])
    found = [
        place
        for place in range(len(after))
        if math.prod(after[:place]) == pieces
    ]
    # Several are found if all but the last of them have length 1.
    same = [place for place in found if after[place] == before[axis]]
    return next(iter([*same, *found[-1:]]), None)


def _transposed(
    operation: tf.Operation, places: Set[int], axis: int
) -> int | None:
    order = tf.get_static_value(operation.inputs[1])
    return None if places != {0} or order is None else list(order).index(axis)


def _merged_or_split(
    operation: tf.Operation, axis: int, batch: int
) -> int | None:
    """The rule of a reshape of `[n, batch, ...]` to or from `[n * batch]`."""
    before, after = operation.inputs[0].shape, operation.outputs[0].shape
    if not before.is_fully_defined() or not after.is_fully_defined():
        return None
    if axis == 1 and before[0] > 1 and before[1] == batch:
        return INTERLEAVED if after[:1] == [before[0] * batch] else None
    if axis == INTERLEAVED and after[:1] == before[:1]:
        return INTERLEAVED
    if axis == INTERLEAVED and after[:2] == [before[0] // batch, batch]:
        return 1
    return None


def _blocks_to_batch(
    operation: tf.Operation, axis: int, batch: int
) -> int | None:
    length = operation.inputs[0].shape[0]
    return INTERLEAVED if axis == 0 and length == batch else None


def _blocks_from_batch(
    operation: tf.Operation, axis: int, batch: int
) -> int | None:
    length = operation.outputs[0].shape[0]
    return 0 if axis == INTERLEAVED and length == batch else None


def _axes(tensor: tf.Tensor, rank: int) -> set[int] | None:
    """Returns the axes that a tensor names, `None` if they are not known."""
    named: Any = tf.get_static_value(tensor)
    if named is None:
        return None
    return {int(axis) % rank for axis in named.reshape(-1)}


_REDUCTIONS = (
    *("All", "Any", "ArgMax", "ArgMin", "Max", "Mean", "Min", "Prod", "Sum"),
)
_OF_IMAGES = (
    *("AvgPool", "AvgPool3D", "BiasAdd", "Conv2D", "Conv3D"),
    *("DepthwiseConv2dNative", "ExtractImagePatches", "MaxPool", "MaxPool3D"),
    *("ResizeArea", "ResizeBicubic", "ResizeBilinear"),
    *("ResizeNearestNeighbor", "StatelessMultinomial"),
)
_ALONG_LAST = (
    *("AdjustHue", "AdjustSaturation", "FFT", "HSVToRGB", "IFFT", "IRFFT"),
    *("LogSoftmax", "RFFT", "RGBToHSV", "Softmax", "TopKV2"),
)
_TRANSPOSED_CONVOLUTIONS = (
    *("Conv2DBackpropInput", "Conv3DBackpropInputV2"),
    "DepthwiseConv2dNativeBackpropInput",
)
# Operations on one tensor, which read or write interleaved examples.
_INTERLEAVING: dict[str, Callable[[tf.Operation, int, int], int | None]] = {
    "BatchToSpaceND": _blocks_from_batch,
    "Reshape": _merged_or_split,
    "SpaceToBatchND": _blocks_to_batch,
}
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(ON_ENTRIES, _on_entries),
    **dict.fromkeys(OF_SHAPE, _reshaped),
    **dict.fromkeys(_REDUCTIONS, _reduced),
    **dict.fromkeys(["Cumprod", "Cumsum", "ReverseV2"], _along(1)),
    **dict.fromkeys(_OF_IMAGES, _with_batch_first),
    **dict.fromkeys(_TRANSPOSED_CONVOLUTIONS, _transposed_convolution),
    **dict.fromkeys(_ALONG_LAST, _along_last(1)),
    **dict.fromkeys(["FFT2D", "IFFT2D", "MatrixBandPart"], _along_last(2)),
    **dict.fromkeys(["LookupTableFindV2"], _of_keys),
    **dict.fromkeys(["GatherNd", "ResourceGatherNd"], _gather_nd),
    **dict.fromkeys(["MirrorPad", "Pad", "PadV2"], _pad),
    **dict.fromkeys(["BatchMatMulV2", "BatchMatMulV3"], _batch_matmul),
    "BroadcastTo": _first_on_entries,
    "ConcatV2": _concat,
    "Einsum": _einsum,
    "GatherV2": _gather,
    "ImageProjectiveTransformV3": _projected_images,
    "MatMul": _matmul,
    "OneHot": _one_hot,
    "Pack": _pack,
    "ResourceGather": _resource_gather,
    "Roll": _along(2),
    "Slice": _slice,
    "Split": _along(0, of=1),
    "SplitV": _along(2),
    "StridedSlice": _strided_slice,
    "Tile": _first_on_entries,
    "Transpose": _transposed,
    "Unpack": _unpacked,
}
# All operations that this file knows.
KNOWN = frozenset(_RULES)
