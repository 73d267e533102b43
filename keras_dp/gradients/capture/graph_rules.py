"""Reads a rule from the graph of a layer's call.

The layer is called again on the batch. If every operation between its inputs
and its outputs keeps the examples apart (`row_operations.py`), the gradient of
a weight follows from the operations that use it:

* `m = z * u`, `z + u` or `z - u`, where `u` is broadcast against `z`: the sum
  of `dL/dm * z`, of `dL/dm` or of `-dL/dm` over the positions of the example.
* `m = z @ u`, as a product of matrices or by `Einsum`: the outer products of
  `z` and `dL/dm`. Their norms need no gradient of an example.

Here `z` is arranged by examples, and `u` is the weight or a function of it. One
backward pass over the batch gives all `dL/dm`.
"""

import contextlib
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.gradients.capture.mapped_examples import map_examples
from keras_dp.gradients.capture.row_operations import (
    KNOWN,
    OF_SHAPE,
    arranged_axis,
    einsum_specs,
    has_own_gradient,
    is_divided,
)
from keras_dp.gradients.layer_calls import float_outputs
from keras_dp.gradients.records.contractions import Axes, contraction
from keras_dp.gradients.records.outer_product_records import (
    OuterProductRecords,
)
from keras_dp.gradients.records.records import MaterializedRecords, in_float
from keras_dp.gradients.registry import Gradients, LayerCall
from keras_dp.keras_internals import mask_of, set_mask

# Operations of `u` that move its entries, and change none.
_MOVES = OF_SHAPE | {"Cast", "Identity", "Transpose"}
# Operations on `z` and a `u` that is broadcast, and the derivatives with
# respect to each. `None` stands for the other one.
_BROADCAST: dict[str, tuple[float | None, float | None]] = {
    "Add": (1, 1),
    "AddV2": (1, 1),
    "BiasAdd": (1, 1),
    "Mul": (None, None),
    "Sub": (1, -1),
}


class _Use(NamedTuple):
    """An operation that uses a weight, and is arranged by examples.

    Attributes:
        operation: The operation.
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


def gradients_from_graph(
    call: LayerCall,
    variables: list[keras.Variable],
    within: Callable[[], contextlib.AbstractContextManager[Any]],
    *,
    mapped: Sequence[int] = (0,),
    draws: Sequence[tf.Tensor] = (),
    largest_bytes: float = float("inf"),
) -> Gradients | None:
    """Returns the gradients of variables that the graph of a call shows.

    Args:
        call: A call of a layer on the batch.
        variables: The variables to differentiate by, in the layer or inside it.
        within: Makes the context in which the layer is called.
        mapped: The places of the arguments that have one row per example, in
            `keras.tree` order.
        draws: The random numbers that the layer draws in this context.
        largest_bytes: The most bytes that per-example gradients may take that
            have to be built.

    Returns:
        The gradients, one entry for each use of a variable. `None` if no graph
        is traced, or if the graph does not show that all variables are used as
        this file describes.
    """
    if tf.executing_eagerly():
        return None
    leaves = keras.tree.flatten((call.args, call.kwargs))
    if not all(isinstance(leaves[place], tf.Tensor) for place in mapped):
        return None
    batch = call.cotangents[0].shape[0]
    wanted = {id(variable) for variable in variables}
    others = [v for v in call.layer.variables if id(v) not in wanted]
    values, fixed = (
        [tf.identity(variable.value) for variable in each]
        for each in (variables, others)
    )
    arranged, leaves = _with_own_names(leaves, mapped)
    graph = tf.compat.v1.get_default_graph()
    # A tensor of another graph may have the name of one of this graph.
    shared = [
        each
        for each in (*fixed, *draws, *leaves)
        if tf.is_symbolic_tensor(each) and each.graph is graph
    ]
    reading = _Reading(values, shared, arranged, batch)

    state = list(zip([*variables, *others], values + fixed, strict=True))
    args, kwargs = keras.tree.pack_sequence_as((call.args, call.kwargs), leaves)
    before = len(graph.get_operations())
    with (
        tf.GradientTape(persistent=True) as tape,
        keras.StatelessScope(state_mapping=state),
        within(),
    ):
        tape.watch(values)
        # Past a `__call__` of its own class: these are arguments of `call`.
        outputs = keras.Layer.__call__(call.layer, *args, **kwargs)
    for operation in graph.get_operations()[before:]:
        reading.read(operation)
    outputs = float_outputs(outputs)
    uses = reading.uses
    if [each.shape for each in outputs] != [g.shape for g in call.cotangents]:
        return None
    if not all(map(reading.is_arranged, outputs)):
        return None
    if _built_bytes(uses, values, batch) > largest_bytes:
        return None
    cotangents = tape.gradient(
        outputs,
        [use.result for use in uses],
        output_gradients=call.cotangents,
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    pairs: Gradients = []
    for use, cotangent in zip(uses, cotangents, strict=True):
        cotangent = in_float(tf.convert_to_tensor(cotangent))
        if use.moved is not None:
            (place,) = use.variables
            shape = values[place].shape
            records = _products(use, cotangent, use.moved, batch, shape)
            pairs.append((variables[place], records))
            continue
        of_weight = _of_weight(use, cotangent, batch)
        for place in sorted(use.variables):
            gradients = _pulled_back(of_weight, use.weight, values[place], tape)
            built = MaterializedRecords(in_float(gradients))
            pairs.append((variables[place], built))
    return pairs


def _with_own_names(
    leaves: list[Any], mapped: Sequence[int]
) -> tuple[list[tf.Tensor], list[Any]]:
    """Copies arguments, so that their names tell them from other tensors.

    Args:
        leaves: All arguments.
        mapped: The places of those with one row per example.

    Returns:
        The tensors with one row per example, with their Keras masks, and all
        arguments with the copies in place.
    """
    leaves, arranged = list(leaves), []
    for place in mapped:
        mask, leaves[place] = mask_of(leaves[place]), tf.identity(leaves[place])
        arranged.append(leaves[place])
        if mask is not None:
            mask = tf.identity(mask)
            arranged.append(mask)
        set_mask(leaves[place], mask)
    return arranged, leaves


class _Reading:
    """Learns from each operation of a call what its outputs depend on.

    A tensor is shared if it depends neither on examples nor on the wanted
    variables. Of a tensor that depends on such variables and on no example, the
    variables are known. Others are arranged by examples, or unknown.

    Attributes:
        uses: The operations that make arranged tensors of weights.
    """

    def __init__(
        self,
        values: list[tf.Tensor],
        shared: list[tf.Tensor],
        arranged: list[tf.Tensor],
        batch: int,
    ) -> None:
        """Starts with what is known before the call.

        Args:
            values: The values of the wanted variables.
            shared: Values of other variables, random numbers and arguments.
                Those that are arranged by examples may be among them.
            arranged: Arguments with one row per example.
            batch: The number of examples.
        """
        self.uses: list[_Use] = []
        self._values, self._batch = values, batch
        self._weights = {
            value.name: frozenset([place]) for place, value in enumerate(values)
        }
        # The axes along which tensors are arranged.
        self._arranged = {each.name: 0 for each in arranged}
        self._shared = {each.name for each in shared} - {*self._arranged}

    def is_arranged(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor is known to be arranged along its first axis."""
        return self._arranged.get(tensor.name) == 0

    def read(self, operation: tf.Operation) -> None:
        """Notes what is known of the outputs of an operation.

        Args:
            operation: The next operation, in the order of their creation.
        """
        inputs = list(operation.inputs)
        names = [each.name for each in operation.outputs]
        if operation.op_def.is_stateful or not inputs or _calls(operation):
            return
        if not all(map(self._is_known, inputs)):
            return
        arranged = {
            place: self._arranged[each.name]
            for place, each in enumerate(inputs)
            if each.name in self._arranged
        }
        weights = [i for i, x in enumerate(inputs) if x.name in self._weights]
        if not weights:
            if not arranged:
                self._shared.update(names)
            else:
                axis = self._axis_after(operation, arranged)
                if axis is not None:
                    self._arranged.update(dict.fromkeys(names, axis))
            return
        on = [self._weights[inputs[place].name] for place in weights]
        use = _Use(operation, weights[0], frozenset[int]().union(*on))
        if arranged:
            if len(weights) == 1:
                self._read_use(use, arranged)
        elif _copies_to_examples(use, self._batch):
            self._note(use)
        elif operation.type in KNOWN and not has_own_gradient(operation):
            self._weights.update(dict.fromkeys(names, use.variables))

    def _axis_after(
        self, operation: tf.Operation, arranged: Mapping[int, int]
    ) -> int | None:
        """Returns what `arranged_axis` does, if all shapes are known."""
        if not all(x.shape.is_fully_defined() for x in operation.outputs):
            return None
        return arranged_axis(operation, arranged, self._batch)

    def _is_known(self, tensor: tf.Tensor) -> bool:
        if not tensor.op.inputs and _is_constant(tensor.op):
            self._shared.add(tensor.name)
        known = (self._shared, self._weights, self._arranged)
        return any(tensor.name in each for each in known)

    def _note(self, use: _Use) -> None:
        if use.result.dtype.is_floating:
            self.uses.append(use)
            self._arranged[use.result.name] = 0

    def _read_use(self, use: _Use, arranged: Mapping[int, int]) -> None:
        """Notes a use, if its gradient is known.

        Args:
            use: The use.
            arranged: For the place of each input that is arranged by examples,
                the axis along which it is.
        """
        operation = use.operation
        axis = self._axis_after(operation, arranged)
        if axis != 0 or any(arranged.values()):
            return
        if operation.type in _BROADCAST:
            if _leaves_batch_alone(use) and not _is_channels_first(operation):
                self._note(use)
            return
        axes = _axes_of(use)
        if axes is not None:
            values = [self._values[place] for place in use.variables]
            moved = _moved_back(use.weight, values, axes)
            self._note(use._replace(axes=axes, moved=moved))


def _calls(operation: tf.Operation) -> bool:
    """Whether an operation calls a function, which may do anything."""
    attributes = operation.node_def.attr.values()
    return operation.type == "PyFuncStateless" or any(
        each.HasField("func") for each in attributes
    )


def _is_constant(operation: tf.Operation) -> bool:
    """Whether an operation without inputs has the same value in each step.

    It is a constant, or a placeholder for one or for an eager tensor.
    """
    if operation.type == "Const":
        return True
    captures = getattr(operation.graph, "captures", ())
    for outer, inner in captures if operation.type == "Placeholder" else ():
        if inner is operation.outputs[0] and inner.dtype != tf.resource:
            return not tf.is_symbolic_tensor(outer) or (
                not outer.op.inputs and _is_constant(outer.op)
            )
    return False


def _leaves_batch_alone(use: _Use) -> bool:
    """Whether `u` is the same for all examples.

    Broadcasting aligns the last axes. The batch must not be among them.
    """
    shape = use.weight.shape
    return shape.rank < use.result.shape.rank or shape[0] == 1


def _is_channels_first(operation: tf.Operation) -> bool:
    """Whether a bias is not broadcast along the last axis, as others are."""
    if operation.type != "BiasAdd":
        return False
    return operation.get_attr("data_format") != b"NHWC"


def _copies_to_examples(use: _Use, batch: int) -> bool:
    """Whether an operation gives each example a copy of a weight."""
    if use.operation.type not in {"BroadcastTo", "Tile"}:
        return False
    if not is_divided(use.result, batch) or has_own_gradient(use.operation):
        return False
    lengths, copied = list(use.weight.shape), list(use.result.shape)
    pairs = zip(reversed(lengths), reversed(copied), strict=False)
    return _leaves_batch_alone(use) and all(a in (1, b) for a, b in pairs)


def _axes_of(use: _Use) -> Axes | None:
    """Returns the axes of a product of matrices, `None` if it is not one."""
    operation, attribute = use.operation, use.operation.get_attr
    if operation.type == "Einsum":
        specs = einsum_specs(operation)
        if specs is None or len(specs[0]) != 2:
            return None
        operands, result = specs
        axes = Axes(operands[1 - use.place], operands[use.place], result)
        return axes if axes.is_contraction else None
    if operation.type == "Conv2D":
        return _PATCHES if _is_of_patches(use) else None
    flag = {"MatMul": "transpose_b", "BatchMatMulV2": "adj_y"}
    if operation.type not in flag or use.place != 1:
        return None
    rank = use.other.shape.rank
    if use.weight.shape.rank != 2 or rank < 2:
        return None
    if operation.type == "BatchMatMulV2" and attribute("adj_x"):
        return None
    kernel = "ba" if attribute(flag[operation.type]) else "ab"
    rows = "cdefghijklm"[: rank - 1]
    return Axes(f"{rows}a", kernel, f"{rows}b")


# The axes of a convolution whose patches do not overlap. Height and width of an
# image are split into patches, and into the pixels of a patch.
_PATCHES = Axes("nypxqc", "pqcd", "nyxd")


def _is_of_patches(use: _Use) -> bool:
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

    `None` if `u` is not made of one variable by moves only, of which reshapes
    come first.

    Args:
        weight: The tensor `u`.
        values: The values of the variables that it depends on.
        axes: The axes of the product.
    """
    kernel, is_reshaped = axes.kernel, False
    while weight is not values[0]:
        operation = weight.op
        is_float = operation.outputs[0].dtype.is_floating
        if operation.type not in _MOVES or not is_float:
            return None
        if operation.type in OF_SHAPE:
            is_reshaped = True
        if operation.type == "Transpose":
            order = tf.get_static_value(operation.inputs[1])
            if is_reshaped or order is None:
                return None
            places = sorted(range(len(order)), key=lambda i: order[i])
            kernel = "".join(kernel[place] for place in places)
        weight = operation.inputs[0]
    return axes._replace(kernel=kernel)


def _built_bytes(
    uses: list[_Use], values: list[tf.Tensor], batch: int
) -> float:
    """Returns the bytes of the per-example gradients that are built.

    These are those of variables with another use than one product, and those of
    functions of weights in products.
    """
    lone, built, size = set[int](), set[int](), 0
    for use in uses:
        built |= use.variables & lone if use.moved else use.variables
        lone |= use.variables
        if use.axes is not None and use.moved is None:
            size += use.weight.shape.num_elements()
    size += sum(values[place].shape.num_elements() for place in built)
    return batch * size * tf.float32.size


def _of_weight(use: _Use, cotangent: tf.Tensor, batch: int) -> tf.Tensor:
    """Returns `dL/du` of each example, `[batch, *shape]`.

    Args:
        use: The use.
        cotangent: `dL/dm`.
        batch: The number of examples.
    """
    if use.axes is None:
        return _summed(use, cotangent, batch)
    shape = use.weight.shape
    return _products(use, cotangent, use.axes, batch, shape).materialize()


def _products(
    use: _Use,
    cotangent: tf.Tensor,
    axes: Axes,
    batch: int,
    shape: tf.TensorShape,
) -> OuterProductRecords:
    """Returns the gradients from a product of matrices.

    Args:
        use: The use.
        cotangent: `dL/dm`.
        axes: The axes of `z`, of a reshape of the result, and of `m`.
        batch: The number of examples.
        shape: The shape of the result.
    """
    inputs = use.other
    if use.operation.type == "Conv2D":
        height, width, channels, _ = use.weight.shape
        _, rows, columns, _ = cotangent.shape
        inputs = tf.reshape(
            inputs, [-1, rows, height, columns, width, channels]
        )
    rows = inputs.shape[0] // batch
    if rows > 1:  # The rows of an example get an axis of their own.
        inputs, cotangent = (
            tf.reshape(each, [batch, rows, *each.shape[1:]])
            for each in (inputs, cotangent)
        )
        first = axes.inputs[0]
        row = min(set(string.ascii_letters) - set("".join(axes)))
        axes = Axes(
            first + row + axes.inputs[1:],
            axes.kernel,
            first + row + axes.outputs[1:],
        )
    return contraction(inputs, cotangent, axes, tuple(shape))


def _summed(use: _Use, cotangent: tf.Tensor, batch: int) -> tf.Tensor:
    """Returns `dL/du` of each example, where `u` is broadcast.

    Args:
        use: The use.
        cotangent: `dL/dm`.
        batch: The number of examples.
    """
    if use.operation.type in _BROADCAST:
        derivative = _BROADCAST[use.operation.type][use.place]
        cotangent *= in_float(use.other) if derivative is None else derivative
    rows, *positions = cotangent.shape
    shape = list(use.weight.shape)
    missing = len(positions) - len(shape)
    # A weight of the rank of the result has an axis for the batch, of length 1.
    aligned = [1] * missing + shape[max(0, -missing) :]
    examples = tf.reshape(cotangent, [batch, rows // batch, *positions])
    axes = [1, *(i + 2 for i, length in enumerate(aligned) if length == 1)]
    return tf.reshape(tf.reduce_sum(examples, axes), [batch, *shape])


def _pulled_back(
    gradients: tf.Tensor,
    weight: tf.Tensor,
    value: tf.Tensor,
    tape: tf.GradientTape,
) -> tf.Tensor:
    """Returns the gradients with respect to a variable.

    Args:
        gradients: Those with respect to `u`, `[batch, *shape]`.
        weight: The tensor `u`.
        value: The value of the variable.
        tape: Has recorded how `u` follows from the value.
    """
    if weight is value:
        return gradients

    def of_example(gradient: tf.Tensor) -> tf.Tensor:
        own = tape.gradient(
            weight,
            value,
            output_gradients=tf.cast(gradient, weight.dtype),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return tf.convert_to_tensor(own)

    return map_examples(of_example, gradients)
