"""The operations of TensorFlow that the gradients know, by what they do.

Graphs are read in four places: variable writes and other side effects
(`unsupported/`), rows that are not the examples (`capture/row_lengths.py`), the
proof that examples are kept apart (`capture/graph_of_call.py`), and the
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
from typing import Any, NamedTuple

import tensorflow as tf


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Side effects. Only these stateful operations may run while a model is called.
READS = _names("""
    LookupTableExportV2 LookupTableFindV2 LookupTableSizeV2 ReadVariableOp
    ResourceGather ResourceGatherNd VarHandleOp VarIsInitializedOp VariableShape
""")
# They end the step, or do nothing.
ASSERTIONS = _names("Assert CheckNumerics CheckNumericsV2")
# Their state counts draws and holds no data.
DRAWS = _names("""
    Multinomial ParameterizedTruncatedNormal RandomGamma RandomPoisson
    RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform
    RandomUniformInt StatelessRandomGetAlg TruncatedNormal
""")
# They are stateful because of the dropout inside, which Keras does not use.
RECURRENCES = _names("""
    CudnnRNN CudnnRNNV2 CudnnRNNV3
    CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3
""")
# It makes a tensor to write to. It is stateful so that each call makes one.
MEMORY = _names("Empty")
# It runs Python, which may keep anything, although it is declared stateless.
PYTHON = _names("PyFuncStateless")
ASSIGNMENTS = _names("AssignAddVariableOp AssignSubVariableOp AssignVariableOp")

# Calls of functions, which are read, too.
CALLS = _names("PartitionedCall StatefulPartitionedCall")
CONDITIONS = _names("If StatelessIf")
CASES = _names("Case StatelessCase")
LOOPS = _names("StatelessWhile While")
COMPILED = _names("XlaCallModule")
# Loops of TensorFlow 1, in which an operation can be among its own inputs.
OLD_LOOPS = _names("Enter Exit LoopCond Merge NextIteration Switch")

# Sources of values.
CONSTANT = "Const"
PLACEHOLDERS = _names("Placeholder PlaceholderWithDefault")

# Their results tell the shapes of their inputs. No operation that is known
# makes a shape of the entries of an arranged tensor.
OF_SHAPES = _names("OnesLike Rank Shape ShapeN Size ZerosLike")
# Each row of the result is placed by an index, or is a number of the shape.
PLACING = _names("""
    RaggedTensorToTensor ScatterNd SparseTensorDenseMatMul SparseToDense
    TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub
    TensorScatterUpdate UnsortedSegmentMax UnsortedSegmentMin
    UnsortedSegmentProd UnsortedSegmentSum Rank Shape Size
""")
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
COPIES = _names("BroadcastTo Tile")
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
OF_SHAPE = _names("ExpandDims Reshape Squeeze")
# Moves entries, and changes none.
MOVES = OF_SHAPE | _names("Cast Identity Transpose")


class _Given(NamedTuple):
    """An operation, some of whose inputs are arranged by examples.

    Attributes:
        places: The places of these inputs, as far as the rule allows.
        axis: The axis along which they are arranged.
    """

    operation: tf.Operation
    places: Set[int]
    axis: int

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the first input."""
        return self.operation.inputs[0].shape

    @property
    def after(self) -> tf.TensorShape:
        """The shape of the first output."""
        return self.operation.outputs[0].shape

    def named(self, place: int, rank: int) -> set[int]:
        """Returns the axes that an input names; all if they are not known."""
        named: Any = tf.get_static_value(self.operation.inputs[place])
        if named is None:
            return set(range(rank))
        return {int(axis) % rank for axis in named.reshape(-1)}


# Returns the axis along which the outputs are arranged, or `None` if nothing is
# known.
_Rule = Callable[[_Given], int | None]


def arranged_axis(
    operation: tf.Operation, arranged: Mapping[int, int], batch: int
) -> int | None:
    """Returns the axis along which the outputs are arranged by examples.

    It is `None` if the operation is not known to keep examples apart. For the
    place of each input that is arranged, `arranged` has its axis.
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
    rule, allowed = _RULES.get(operation.type, (None, None))
    if rule is None or not (allowed is None or places <= allowed):
        return None
    if axis == INTERLEAVED:
        # All but a reshape treat each entry of the axis as they treat others.
        if rule is _reshaped or rule(_Given(operation, places, 0)) != 0:
            return None
        return INTERLEAVED
    return rule(_Given(operation, places, axis))


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

    It is `None` if an axis stands twice in an operand, or is broadcast.
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


def _on_entries(given: _Given) -> int | None:
    """The inputs are broadcast to the shape of the output."""
    axis, output = given.axis, given.after
    shapes = [given.operation.inputs[place].shape for place in given.places]
    is_kept = all(
        shape.rank == output.rank and shape[axis] == output[axis]
        for shape in shapes
    )
    return axis if is_kept else None


def _only_first(given: _Given) -> int | None:
    """The batch must be the first axis."""
    return 0 if given.axis == 0 else None


def _with_batch_first(given: _Given) -> int | None:
    """The channels may be first or last."""
    return _only_first(given) if given.shape.rank > 1 else None


def _along_last(count: int) -> _Rule:
    """Returns the rule of operations along the last axes of one tensor."""

    def rule(given: _Given) -> int | None:
        return given.axis if given.axis < given.shape.rank - count else None

    return rule


def _along(place: int, of: int = 0) -> _Rule:
    """Returns the rule of operations along axes that an input names.

    It is the input at `place`. They are axes of the input at `of`.
    """

    def rule(given: _Given) -> int | None:
        rank = given.operation.inputs[of].shape.rank
        along = given.named(place, rank)
        return given.axis if along and given.axis not in along else None

    return rule


def _reduced(given: _Given) -> int | None:
    axis, along = given.axis, given.named(1, given.shape.rank)
    if axis in along:
        return None
    is_kept = given.shape.rank == given.after.rank
    return axis if is_kept else axis - sum(each < axis for each in along)


def _matmul(given: _Given) -> int | None:
    is_swapped = given.operation.get_attr("transpose_a")
    return None if is_swapped else _only_first(given)


def _batch_matmul(given: _Given) -> int | None:
    rows = given.after.rank - 2
    is_of_rows = given.places == {0} and not given.operation.get_attr("adj_x")
    is_kept = given.axis < rows or (given.axis == rows and is_of_rows)
    return _on_entries(given) if is_kept else None


def _einsum(given: _Given) -> int | None:
    specs = einsum_specs(given.operation)
    if specs is None:
        return None
    operands, result = specs
    (letter, *others) = {operands[place][given.axis] for place in given.places}
    return None if others or letter not in result else result.index(letter)


def _concat(given: _Given) -> int | None:
    last = len(given.operation.inputs) - 1
    along = given.named(last, given.after.rank)
    is_apart = along and given.axis not in along and last not in given.places
    return given.axis if is_apart else None


def _with_one_more(given: _Given) -> int:
    """The outputs have an axis that the inputs do not have."""
    along = given.operation.get_attr("axis") % given.after.rank
    return given.axis + (along <= given.axis)


def _unpacked(given: _Given) -> int | None:
    along = given.operation.get_attr("axis") % given.shape.rank
    return None if along == given.axis else given.axis - (along < given.axis)


def _slice(given: _Given) -> int | None:
    axis = given.axis
    begin = tf.get_static_value(given.operation.inputs[1], partial=True)
    is_whole = begin is not None and begin[axis] == 0
    is_whole = is_whole and given.shape[axis] == given.after[axis]
    return axis if is_whole else None


def _strided_slice(given: _Given) -> int | None:
    operation, axis, shape = given.operation, given.axis, given.shape
    begin, _, strides = (
        tf.get_static_value(each, partial=True)
        for each in operation.inputs[1:4]
    )
    if begin is None or strides is None:
        return None
    masks = {
        name: operation.get_attr(f"{name}_mask")
        for name in ("begin", "ellipsis", "new_axis", "shrink_axis")
    }
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
            return after if given.after[after] == shape[axis] else None
        else:
            before, after = before + 1, after + (not has("shrink_axis", place))
    return after + axis - before


def _gather(given: _Given) -> int | None:
    # An index out of range would reach the next example in a batched gather.
    named = given.operation.inputs[2]
    if given.operation.get_attr("batch_dims") or (
        tf.get_static_value(named) is None
    ):
        return None
    axis, (along,) = given.axis, given.named(2, given.shape.rank)
    if given.places == {1}:
        return along + axis
    if given.places != {0} or axis == along:
        return None
    rank = given.operation.inputs[1].shape.rank
    return axis if axis < along else axis + rank - 1


def _gather_nd(given: _Given) -> int | None:
    rank = given.operation.inputs[1].shape.rank
    return given.axis if given.axis < rank - 1 else None


def _of_keys(given: _Given) -> int | None:
    return given.axis


def _projected_images(given: _Given) -> int | None:
    """Each image has a transform, or all have the same."""
    transforms = given.operation.inputs[1].shape
    is_each = 1 not in given.places or given.shape[0] == transforms[0]
    return _only_first(given) if 0 in given.places and is_each else None


def _resource_gather(given: _Given) -> int | None:
    return None if given.operation.get_attr("batch_dims") else given.axis


def _pad(given: _Given) -> int | None:
    widths = tf.get_static_value(given.operation.inputs[1])
    is_apart = widths is not None and not any(widths[given.axis])
    return given.axis if is_apart else None


def _reshaped(given: _Given) -> int | None:
    """Finds the axis of the examples after a reshape.

    The axes before the examples stand for pieces of memory. If there are as
    many pieces afterwards, each has the same part of an example.
    """
    axis, shapes = given.axis, (given.shape, given.after)
    if not all(each.is_fully_defined() for each in shapes):
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


def _transposed(given: _Given) -> int | None:
    order = tf.get_static_value(given.operation.inputs[1])
    return None if order is None else list(order).index(given.axis)


def _merged_or_split(
    operation: tf.Operation, axis: int, batch: int
) -> int | None:
    """Reads a reshape of `[n, batch, ...]` to or from `[n * batch]`."""
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


# Operations on one tensor, which read or write interleaved examples.
_INTERLEAVING: dict[str, Callable[[tf.Operation, int, int], int | None]] = {
    "BatchToSpaceND": _blocks_from_batch,
    "Reshape": _merged_or_split,
    "SpaceToBatchND": _blocks_to_batch,
}
# Rules, the inputs that may be arranged by examples (`None`: all), and the
# operations.
_TABLE: tuple[tuple[_Rule, Set[int] | None, str], ...] = (
    (
        _on_entries,
        None,
        """
        Abs Acos Acosh Add AddN AddV2 Angle AsString Asin Asinh Atan Atan2 Atanh
        BitwiseAnd BitwiseOr BitwiseXor Bucketize Cast Ceil ClipByValue Complex
        ComplexAbs Conj Cos Cosh Digamma Div DivNoNan Elu EluGrad EnsureShape
        Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod Greater
        GreaterEqual Identity Imag Invert IsFinite IsInf IsNan LeakyRelu
        LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd
        LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Neg NextAfter
        NotEqual Pow Real RealDiv Reciprocal ReciprocalGrad RegexFullMatch
        RegexReplace Relu Relu6 Relu6Grad ReluGrad RightShift Rint Round Rsqrt
        RsqrtGrad SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh
        Softplus SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad Square
        SquaredDifference StaticRegexFullMatch StaticRegexReplace StopGradient
        StringLower StringStrip StringToHashBucketFast StringToHashBucketStrong
        StringUpper Sub Tan Tanh TanhGrad TruncateDiv TruncateMod Xdivy Xlogy
        """,
    ),
    (_reshaped, {0}, "ExpandDims Reshape Squeeze"),
    (_reduced, {0}, "All Any ArgMax ArgMin Max Mean Min Prod Sum"),
    (_along(1), {0}, "Cumprod Cumsum ReverseV2"),
    (
        _with_batch_first,
        {0},
        """
        AvgPool AvgPool3D BiasAdd Conv2D Conv3D DepthwiseConv2dNative
        ExtractImagePatches MaxPool MaxPool3D ResizeArea ResizeBicubic
        ResizeBilinear ResizeNearestNeighbor StatelessMultinomial
        """,
    ),
    (
        _only_first,
        {2},
        """
        Conv2DBackpropInput Conv3DBackpropInputV2
        DepthwiseConv2dNativeBackpropInput
        """,
    ),
    (
        _along_last(1),
        {0},
        """
        AdjustHue AdjustSaturation FFT HSVToRGB IFFT IRFFT LogSoftmax RFFT
        RGBToHSV Softmax TopKV2
        """,
    ),
    (_along_last(2), {0}, "FFT2D IFFT2D MatrixBandPart"),
    (_of_keys, {1}, "LookupTableFindV2"),
    (_gather_nd, {1}, "GatherNd ResourceGatherNd"),
    (_pad, {0}, "MirrorPad Pad PadV2"),
    (_batch_matmul, None, "BatchMatMulV2 BatchMatMulV3"),
    (_on_entries, {0}, "BroadcastTo Tile"),
    (_concat, None, "ConcatV2"),
    (_einsum, None, "Einsum"),
    (_gather, {0, 1}, "GatherV2"),
    (_projected_images, {0, 1}, "ImageProjectiveTransformV3"),
    (_matmul, {0}, "MatMul"),
    (_with_one_more, {0}, "OneHot"),
    (_with_one_more, None, "Pack"),
    (_resource_gather, {1}, "ResourceGather"),
    (_along(2), {0}, "Roll SplitV"),
    (_slice, {0}, "Slice"),
    (_along(0, of=1), {1}, "Split"),
    (_strided_slice, {0}, "StridedSlice"),
    (_transposed, {0}, "Transpose"),
    (_unpacked, None, "Unpack"),
)
_RULES = {
    name: (rule, places)
    for rule, places, text in _TABLE
    for name in text.split()
}
# All operations that this file knows.
KNOWN = frozenset(_RULES)
