"""Layers without a rule whose weights are only broadcast against the output.

Such a weight scales or shifts the positions of an example: the scale of a root
mean square normalization, the scale of a residual branch, a bias. The graph of
the layer's call shows which weights are used so.

Let `m = u * z` with `u = g(w)`, where `g` acts on each entry and `u` is
broadcast against `m`. Let only operations on single entries lie between `m` and
the output. Then the gradient of example `i` is `g'(w)` times the sum of
`dL/dm[i] * z[i]` over its positions. If `m` is a sum or a difference, `z` is
replaced by 1 or -1. One backward pass over the batch gives `dL/dm`.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.gradients.layer_calls import float_outputs
from keras_dp.gradients.records.records import (
    MaterializedRecords,
    in_float,
)
from keras_dp.gradients.registry import Gradients, LayerCall

# Operations on single entries of one tensor.
_UNARY = {
    "Cast",
    "Elu",
    "Exp",
    "Identity",
    "LeakyRelu",
    "Log",
    "Neg",
    "Reciprocal",
    "Relu",
    "Relu6",
    "Rsqrt",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Square",
    "Tanh",
}
# Such operations on two tensors, and their derivatives with respect to each.
# `None` stands for the other tensor.
_BINARY: dict[str, tuple[float | None, float | None]] = {
    "Add": (1, 1),
    "AddV2": (1, 1),
    "Mul": (None, None),
    "Sub": (1, -1),
}


class _Use(NamedTuple):
    """One operation that broadcasts a weight `u` against the output.

    Attributes:
        weight: The tensor `u`, in the shape of the variable.
        product: The result `m`, in the shape of the output.
        factor: The derivative of `m` with respect to `u`: a tensor like `m`, or
            a number.
    """

    weight: tf.Tensor
    product: tf.Tensor
    factor: tf.Tensor | float


def broadcast_gradients(
    call: LayerCall,
    variables: list[keras.Variable],
    within: Callable[[], contextlib.AbstractContextManager[Any]],
) -> Gradients | None:
    """Returns the gradients of variables that a layer only broadcasts.

    Args:
        call: A call of a layer on the batch.
        variables: The variables to differentiate by. The layer owns them.
        within: Makes the context in which the layer is called.

    Returns:
        The gradients. `None` if no graph is traced, or if the graph does not
        show that all variables are used as this file describes.
    """
    (cotangent, *others) = call.cotangents
    if others or tf.executing_eagerly() or not all(map(_is_vector, variables)):
        return None
    values = [tf.identity(variable.value) for variable in variables]
    scope = keras.StatelessScope(
        state_mapping=list(zip(variables, values, strict=True))
    )
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    with tf.GradientTape(persistent=True) as tape, scope, within():
        tape.watch(values)
        # Past a `__call__` of its own class: these are arguments of `call`.
        outputs = keras.Layer.__call__(call.layer, *call.args, **call.kwargs)
    found = float_outputs(outputs)
    if len(found) != 1 or found[0].shape != cotangent.shape:
        return None
    if any(map(_reads_a_variable, graph.get_operations()[before:])):
        return None  # It may be one of these, read past the watched values.
    (output,) = found
    uses = [_uses_of(value, output) for value in values]
    pairs: Gradients = []
    for variable, value, own in zip(variables, values, uses, strict=True):
        if own is None:
            return None
        parts = [_summed(use, value, output, cotangent, tape) for use in own]
        shape = [cotangent.shape[0], *variable.shape]
        total = tf.add_n(parts) if parts else tf.zeros(shape)
        pairs.append((variable, MaterializedRecords(total)))
    return pairs


def _is_vector(variable: keras.Variable) -> bool:
    """Whether at most one axis of a variable is longer than 1."""
    return math.prod(variable.shape) == max(variable.shape, default=1)


def _reads_a_variable(operation: tf.Operation) -> bool:
    return any(each.dtype == tf.resource for each in operation.inputs)


def _uses_of(value: tf.Tensor, output: tf.Tensor) -> list[_Use] | None:
    """Returns all uses of a variable, `None` if one does not broadcast it.

    Args:
        value: The value of the variable, which nothing used before the call.
        output: The output of the layer.
    """
    uses: list[_Use] = []
    weights: list[tf.Tensor] = [value]
    products: list[tf.Tensor] = []
    seen: set[int] = set()
    while weights or products:
        is_weight = bool(weights)
        tensor = (weights or products).pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if not is_weight and tensor.shape != output.shape:
            return None
        for operation in tensor.consumers():
            if len(operation.outputs) != 1:
                return None
            (result,) = operation.outputs
            if not is_weight:
                if operation.type not in _UNARY | _BINARY.keys():
                    return None
                products.append(result)
                continue
            if result.shape == value.shape and _is_of_weight(result, value):
                weights.append(result)
                continue
            use = _use(tensor, operation, output)
            if use is None:
                return None
            uses.append(use)
            products.append(result)
    return uses


def _use(
    weight: tf.Tensor, operation: tf.Operation, output: tf.Tensor
) -> _Use | None:
    """Returns how an operation broadcasts a weight, `None` if it does not."""
    (result,) = operation.outputs
    if operation.type not in _BINARY or result.shape != output.shape:
        return None
    place = [each is weight for each in operation.inputs].index(True)
    other = operation.inputs[1 - place]
    if other is weight or other.shape != output.shape:
        return None
    # Broadcasting aligns the last axes. The batch must not be among them.
    if weight.shape.rank == output.shape.rank and weight.shape[0] != 1:
        return None
    derivative = _BINARY[operation.type][place]
    return _Use(weight, result, other if derivative is None else derivative)


def _is_of_weight(tensor: tf.Tensor, value: tf.Tensor) -> bool:
    """Whether each entry depends on one entry of a weight, and on constants."""
    if tensor is value or tensor.op.type == "Const":
        return True
    return tensor.op.type in _UNARY | _BINARY.keys() and all(
        _is_of_weight(each, value) for each in tensor.op.inputs
    )


def _summed(
    use: _Use,
    value: tf.Tensor,
    output: tf.Tensor,
    cotangent: tf.Tensor,
    tape: tf.GradientTape,
) -> tf.Tensor:
    """Returns the gradients from one use of a variable, `[batch, *shape]`."""
    gradient = tape.gradient(
        output,
        use.product,
        output_gradients=cotangent,
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    products = in_float(gradient)
    products *= in_float(use.factor) if tf.is_tensor(use.factor) else use.factor
    batch, *positions = products.shape
    missing = len(positions) - len(value.shape)
    # A weight of the rank of the output has an axis for the batch, of length 1.
    shape = [1] * missing + list(value.shape)[max(0, -missing) :]
    axes = [place + 1 for place, length in enumerate(shape) if length == 1]
    sums = tf.reshape(tf.reduce_sum(products, axes), [batch, *value.shape])
    if use.weight is value:
        return sums
    slopes = tape.gradient(use.weight, value, tf.ones_like(use.weight))
    return sums * in_float(slopes)
