"""Reads a rule from the graph of a layer's call.

The layer is called again on the batch, and its graph is read from the outputs
back to the inputs (`examples_apart.py`). If every operation on the way keeps
the examples apart, the gradient of a weight follows from the operations that
use it:

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

from keras_dp.gradients.capture.examples_apart import (
    Coupling,
    Reading,
    State,
)
from keras_dp.gradients.capture.mapped_examples import map_examples
from keras_dp.gradients.layer_calls import float_outputs
from keras_dp.gradients.operations import (
    BATCHED_PRODUCT,
    BIAS,
    BROADCAST,
    CONTRACTION,
    CONVOLUTION,
    COPIES,
    KNOWN,
    MOVES,
    OF_SHAPE,
    PRODUCTS,
    TRANSPOSE,
    arranged_axis,
    einsum_specs,
    has_own_gradient,
    is_divided,
)
from keras_dp.gradients.records.contractions import Axes, contraction
from keras_dp.gradients.records.outer_product_records import (
    OuterProductRecords,
)
from keras_dp.gradients.records.records import MaterializedRecords, in_float
from keras_dp.gradients.registry import Gradients, LayerCall
from keras_dp.keras_internals import mask_of, set_mask


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
) -> Gradients | None:
    """Returns the gradients of variables that the graph of a call shows.

    Args:
        call: A call of a layer on the batch.
        variables: The variables to differentiate by, in the layer or inside it.
        within: Makes the context in which the layer is called.
        mapped: The places of the arguments that have one row per example, in
            `keras.tree` order.
        draws: The random numbers that the layer draws in this context.

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
    known: dict[str, State] = {each.name: None for each in shared}
    known |= {each.name: 0 for each in arranged}
    known |= {each.name: frozenset([i]) for i, each in enumerate(values)}
    known |= _behind_keras(call.layer, graph)
    reading = _Uses(known, values, batch)

    state = list(zip([*variables, *others], values + fixed, strict=True))
    args, kwargs = keras.tree.pack_sequence_as((call.args, call.kwargs), leaves)
    with (
        tf.GradientTape(persistent=True) as tape,
        keras.StatelessScope(state_mapping=state),
        within(),
    ):
        tape.watch(values)
        # Past a `__call__` of its own class: these are arguments of `call`.
        outputs = keras.Layer.__call__(call.layer, *args, **kwargs)
    outputs = float_outputs(outputs)
    if [each.shape for each in outputs] != [g.shape for g in call.cotangents]:
        return None
    if any(reading.state(each) != 0 for each in outputs):
        return None
    uses = reading.uses
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


def _behind_keras(layer: keras.Layer, graph: tf.Graph) -> dict[str, State]:
    """Returns the handles of variables, from which nothing is known.

    In this call Keras gives variables the values that `_Uses` knows. What reads
    a handle is past Keras.
    """
    handles: dict[str, State] = {}
    for variable in layer.variables:
        for value in getattr(variable.value, "values", [variable.value]):
            handle = getattr(value, "handle", None)
            if handle is not None and hasattr(graph, "capture"):
                captured = graph.capture(handle)
                handles[captured.name] = Coupling("variable", variable.path)
    return handles


class _Uses(Reading):
    """Learns which operations of a call make arranged tensors of weights.

    Attributes:
        uses: These operations.
    """

    def __init__(
        self, known: dict[str, State], values: list[tf.Tensor], batch: int
    ) -> None:
        """Starts with what is known before the call.

        Args:
            known: Maps the names of tensors to what is known of them. Wanted
                variables have their place in `values`.
            values: The values of the wanted variables.
            batch: The number of examples.
        """
        super().__init__(known, batch)
        self.uses: list[_Use] = []
        self._values = values

    def _read(self, operation: tf.Operation) -> list[State]:
        unknown = Coupling(operation.type, operation.name)
        count = len(operation.outputs)
        if operation.op_def.is_stateful:
            return [unknown] * count
        states = [self._known.get(x.name, unknown) for x in operation.inputs]
        sets = {i: x for i, x in enumerate(states) if isinstance(x, frozenset)}
        if not sets:
            return super()._read(operation)
        if any(isinstance(each, Coupling) for each in states):
            return [unknown] * count
        arranged = {i: x for i, x in enumerate(states) if isinstance(x, int)}
        places = frozenset[int]().union(*sets.values())
        use = _Use(operation, next(iter(sets)), places)
        if arranged:
            is_use = len(sets) == 1 and self._notes(use, arranged)
            return [0 if is_use else unknown] * count
        if _copies_to_examples(use, self._batch):
            return [0 if self._note(use) else unknown] * count
        is_known = operation.type in KNOWN and not has_own_gradient(operation)
        return [places if is_known else unknown] * count

    def _note(self, use: _Use) -> bool:
        """Notes a use, unless its result has no gradient."""
        if use.result.dtype.is_floating:
            self.uses.append(use)
        return bool(use.result.dtype.is_floating)

    def _notes(self, use: _Use, arranged: Mapping[int, int]) -> bool:
        """Notes a use of a weight and arranged tensors, if it is one.

        Args:
            use: The use.
            arranged: For the place of each input that is arranged by examples,
                the axis along which it is.
        """
        operation = use.operation
        tensors = [*operation.inputs, *operation.outputs]
        if any(arranged.values()) or not all(
            each.shape.is_fully_defined() for each in tensors
        ):
            return False
        if arranged_axis(operation, arranged, self._batch) != 0:
            return False
        if operation.type in BROADCAST:
            is_first = _is_channels_first(operation)
            return not is_first and _leaves_batch_alone(use) and self._note(use)
        axes = _axes_of(use)
        if axes is None:
            return False
        values = [self._values[place] for place in use.variables]
        moved = _moved_back(use.weight, values, axes)
        return self._note(use._replace(axes=axes, moved=moved))


def _leaves_batch_alone(use: _Use) -> bool:
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


def _copies_to_examples(use: _Use, batch: int) -> bool:
    """Whether an operation gives each example a copy of a weight."""
    if use.operation.type not in COPIES:
        return False
    if not is_divided(use.result, batch) or has_own_gradient(use.operation):
        return False
    lengths, copied = list(use.weight.shape), list(use.result.shape)
    pairs = zip(reversed(lengths), reversed(copied), strict=False)
    return _leaves_batch_alone(use) and all(a in (1, b) for a, b in pairs)


def _axes_of(use: _Use) -> Axes | None:
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
        if operation.type not in MOVES or not is_float:
            return None
        if operation.type in OF_SHAPE:
            is_reshaped = True
        if operation.type == TRANSPOSE:
            order = tf.get_static_value(operation.inputs[1])
            if is_reshaped or order is None:
                return None
            places = sorted(range(len(order)), key=lambda i: order[i])
            kernel = "".join(kernel[place] for place in places)
        weight = operation.inputs[0]
    return axes._replace(kernel=kernel)


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
    if use.operation.type == CONVOLUTION:
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
    if use.operation.type in BROADCAST:
        derivative = BROADCAST[use.operation.type][use.place]
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
