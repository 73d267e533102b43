"""Reads a rule from the graph of a layer's call.

The layer is called again on the batch, and its graph is read from the outputs
back to the inputs (`graph_of_call.py`). If every operation on the way keeps
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
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_dp.gradients.capture.graph_of_call import GraphOfCall
from keras_dp.gradients.capture.mapped_examples import map_examples
from keras_dp.gradients.capture.weight_uses import Use, is_reshape
from keras_dp.gradients.layer_calls import float_outputs
from keras_dp.gradients.operations import BROADCAST, CONVOLUTION
from keras_dp.gradients.records.contractions import Axes, contraction
from keras_dp.gradients.records.outer_product_records import (
    OuterProductRecords,
)
from keras_dp.gradients.records.records import MaterializedRecords, in_float
from keras_dp.gradients.registry import Gradients, LayerCall
from keras_dp.keras_internals import mask_of, set_mask


def gradients_from_graph(
    call: LayerCall,
    variables: list[keras.Variable],
    within: Callable[[], contextlib.AbstractContextManager[Any]],
    *,
    mapped: Sequence[int] = (0,),
    draws: Sequence[tf.Tensor] = (),
) -> Gradients | None:
    """Returns the gradients of variables that the graph of a call shows.

    There is one entry for each use of a variable. It is `None` if no graph is
    traced, or if the graph does not show that all variables are used as this
    file describes. The arguments at the places `mapped` have one row per
    example, and `draws` are what the layer draws `within` the context of the
    call.
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
    leaves = _with_own_names(leaves, mapped)
    graph = GraphOfCall(
        [leaves[place] for place in mapped],
        batch,
        [*fixed, *draws, *leaves],
        values,
        call.layer.variables,
    )

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
    if any(graph.batch_axis(each) != 0 for each in outputs):
        return None
    uses = graph.uses
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


def _with_own_names(leaves: list[Any], mapped: Sequence[int]) -> list[Any]:
    """Copies the arguments that have one row per example, with their masks.

    Their names then tell them from other tensors.
    """
    leaves = list(leaves)
    for place in mapped:
        mask, leaves[place] = mask_of(leaves[place]), tf.identity(leaves[place])
        set_mask(leaves[place], None if mask is None else tf.identity(mask))
    return leaves


def _of_weight(use: Use, cotangent: tf.Tensor, batch: int) -> tf.Tensor:
    """Returns `dL/du` of each example, `[batch, *shape]`, from `dL/dm`."""
    if use.axes is None:
        return _summed(use, cotangent, batch)
    shape = use.weight.shape
    return _products(use, cotangent, use.axes, batch, shape).materialize()


def _products(
    use: Use,
    cotangent: tf.Tensor,
    axes: Axes,
    batch: int,
    shape: tf.TensorShape,
) -> OuterProductRecords:
    """Returns the gradients from a product of matrices.

    `axes` are those of `z`, of a reshape of the result, and of `m`. The result
    has the given shape.
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


def _summed(use: Use, cotangent: tf.Tensor, batch: int) -> tf.Tensor:
    """Returns `dL/du` of each example from `dL/dm`, where `u` is broadcast."""
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
    """Returns the gradients of a variable from those of `u`, `[batch, *shape]`.

    The tape has recorded how `u` follows from the value of the variable.
    """
    if is_reshape(weight, value):
        return tf.reshape(gradients, [gradients.shape[0], *value.shape])

    def of_example(gradient: tf.Tensor) -> tf.Tensor:
        own = tape.gradient(
            weight,
            value,
            output_gradients=tf.cast(gradient, weight.dtype),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return tf.convert_to_tensor(own)

    return map_examples(of_example, gradients)
