"""The operations that use a weight, and are arranged by examples.

They are of three kinds: one that broadcasts the weight, a product of matrices
with it, and one that gives each example a copy of it. As in `graph_rules.py`,
`u` is the weight or a function of it, `z` the other input, and `m` the result.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_dp.gradients.operations import (
    BATCHED_PRODUCT,
    BIAS,
    BROADCAST,
    CONTRACTION,
    CONVOLUTION,
    COPIES,
    MOVES,
    OF_SHAPE,
    PRODUCTS,
    TRANSPOSE,
    arranged_axis,
    einsum_specs,
    has_own_gradient,
    is_divided,
)
from keras_dp.gradients.records.contractions import Axes


class Use(NamedTuple):
    """An operation that uses a weight, and is arranged by examples.

    Attributes:
        place: Which of its inputs is `u`.
        variables: The places of the variables that `u` depends on.
        axes: The axes of `z`, `u` and `m` if it is a product of matrices.
        moved: Those axes, with the axes of `u` before it was transposed, if `u`
            has the entries of a single variable. Their order in memory is that
            of the variable.
    """

    operation: tf.Operation
    place: int
    variables: frozenset[int]
    axes: Axes | None = None
    moved: Axes | None = None

    @property
    def weight(self) -> tf.Tensor:
        """The tensor `u`."""
        return self.operation.inputs[self.place]

    @property
    def other(self) -> tf.Tensor:
        """The tensor `z`."""
        return self.operation.inputs[1 - self.place]

    @property
    def result(self) -> tf.Tensor:
        """The tensor `m`."""
        return self.operation.outputs[0]


def known_use(
    use: Use,
    values: Sequence[tf.Tensor],
    arranged: Mapping[int, int],
    batch: int,
) -> Use | None:
    """Returns the use with its axes, `None` if it is of no known kind.

    `values` are those of all wanted variables. `arranged` has the axis of each
    input that is arranged by examples, by its place.
    """
    operation = use.operation
    if not use.result.dtype.is_floating:  # It has no gradient.
        return None
    if not arranged:
        return use if _copies_to_examples(use, batch) else None
    tensors = [*operation.inputs, *operation.outputs]
    if any(arranged.values()) or not all(
        each.shape.is_fully_defined() for each in tensors
    ):
        return None
    if arranged_axis(operation, arranged, batch) != 0:
        return None
    if operation.type in BROADCAST:
        is_first = _is_channels_first(operation)
        return use if _leaves_batch_alone(use) and not is_first else None
    axes = _axes_of(use)
    if axes is None:
        return None
    own = [values[place] for place in use.variables]
    return use._replace(axes=axes, moved=_moved_back(use.weight, own, axes))


def _leaves_batch_alone(use: Use) -> bool:
    """Whether `u` is the same for all examples.

    Broadcasting aligns the last axes. The batch must not be among them.
    """
    shape = use.weight.shape
    return shape.rank < use.result.shape.rank or shape[0] == 1


def _is_channels_first(operation: tf.Operation) -> bool:
    """Whether a bias is not broadcast along the last axis, as others are."""
    if operation.type != BIAS:
        return False
    return operation.get_attr("data_format") != b"NHWC"


def _copies_to_examples(use: Use, batch: int) -> bool:
    """Whether an operation gives each example a copy of a weight."""
    if use.operation.type not in COPIES:
        return False
    if not is_divided(use.result, batch) or has_own_gradient(use.operation):
        return False
    lengths, copied = list(use.weight.shape), list(use.result.shape)
    pairs = zip(reversed(lengths), reversed(copied), strict=False)
    return _leaves_batch_alone(use) and all(a in (1, b) for a, b in pairs)


def _axes_of(use: Use) -> Axes | None:
    """Returns the axes of a product of matrices, `None` if it is not one."""
    operation, attribute = use.operation, use.operation.get_attr
    if operation.type == CONTRACTION:
        specs = einsum_specs(operation)
        if specs is None or len(specs[0]) != 2:
            return None
        operands, result = specs
        axes = Axes(operands[1 - use.place], operands[use.place], result)
        return axes if axes.is_contraction else None
    if operation.type == CONVOLUTION:
        return _PATCHES if _is_of_patches(use) else None
    if operation.type not in PRODUCTS or use.place != 1:
        return None
    rank = use.other.shape.rank
    if use.weight.shape.rank != 2 or rank < 2:
        return None
    if operation.type == BATCHED_PRODUCT and attribute("adj_x"):
        return None
    kernel = "ba" if attribute(PRODUCTS[operation.type]) else "ab"
    rows = "cdefghijklm"[: rank - 1]
    return Axes(f"{rows}a", kernel, f"{rows}b")


# The axes of a convolution whose patches do not overlap. Height and width of an
# image are split into patches, and into the pixels of a patch.
_PATCHES = Axes("nypxqc", "pqcd", "nyxd")


def _is_of_patches(use: Use) -> bool:
    """Whether a convolution has patches that cover each pixel once."""
    attribute = use.operation.get_attr
    _, height, width, channels = use.other.shape
    *kernel, depth, _ = use.weight.shape
    return (
        use.place == 1
        and attribute("data_format") == b"NHWC"
        and attribute("padding") in (b"SAME", b"VALID")
        and list(attribute("strides")) == [1, *kernel, 1]
        and set(attribute("dilations")) == {1}
        and height % kernel[0] == width % kernel[1] == 0
        and channels == depth
    )


def _moved_back(
    weight: tf.Tensor, values: list[tf.Tensor], axes: Axes
) -> Axes | None:
    """Returns the axes with those of `u` before it was transposed.

    It is `None` if `u` is not made of the values of one variable by moves only,
    of which reshapes come first.
    """
    moves = _moves_of(weight, values[0])
    if moves is None:
        return None
    kernel, is_reshaped = axes.kernel, False
    for operation in moves:
        if operation.type in OF_SHAPE:
            is_reshaped = True
        if operation.type == TRANSPOSE:
            order = tf.get_static_value(operation.inputs[1])
            if is_reshaped or order is None:
                return None
            places = sorted(range(len(order)), key=lambda i: order[i])
            kernel = "".join(kernel[place] for place in places)
    return axes._replace(kernel=kernel)


def is_reshape(weight: tf.Tensor, value: tf.Tensor) -> bool:
    """Whether `u` has the entries of a variable, in their order in memory."""
    moves = _moves_of(weight, value)
    return moves is not None and all(x.type != TRANSPOSE for x in moves)


def _moves_of(weight: tf.Tensor, value: tf.Tensor) -> list[tf.Operation] | None:
    """Returns the moves that make `u` of a variable, from the last one back.

    It is `None` if there are other operations.
    """
    moves = []
    while weight is not value:
        if weight.op.type not in MOVES or not weight.dtype.is_floating:
            return None
        moves.append(weight.op)
        weight = weight.op.inputs[0]
    return moves
