"""Calls layers without a rule again, vectorized or one example at a time.

The layer is called again on every example as a batch of one, under a tape that
watches its variables only. The gradients of all examples are built.

None of this is needed where the graph of the layer's call shows a rule
(`graph_rules.py`).

A model that no graph can be made of is called for one example after another.
Only a graph shows whether the rows that a layer sees are the examples. Where
Python code reads the values of tensors there is none. So each example is a
batch of one, with a tape of its own: what the model does with an example cannot
depend on others, unless it keeps them in Python. The whole batch is called for
its random numbers alone, of which each example takes its own.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_dp.gradients.capture.graph_rules import gradients_from_graph
from keras_dp.gradients.capture.hooks import Hook
from keras_dp.gradients.capture.mapped_examples import operation_types
from keras_dp.gradients.capture.repeated_draws import RepeatedDraws
from keras_dp.gradients.layer_calls import float_outputs, trained_variables
from keras_dp.gradients.operations import BATCHED_PRODUCT, LOOPS
from keras_dp.gradients.records.records import MaterializedRecords
from keras_dp.gradients.registry import (
    Gradients,
    LayerCall,
    OpenCall,
)
from keras_dp.keras_internals import layers_of, mask_of, set_mask


def called_again(
    call: LayerCall,
    variables: list[keras.Variable],
    *,
    jit_compile: bool,
    within: Callable[[], contextlib.AbstractContextManager[Any]] = (
        contextlib.nullcontext
    ),
) -> tuple[Gradients, str]:
    """Returns the gradients of variables of a layer, and how they follow.

    They follow "from its graph" if a call on the batch shows them, else
    "example by example".

    An argument that is a tensor as long as the batch is taken to have one row
    per example. All other arguments are passed to every example as they are.
    The variables stand in the layer or inside it. `jit_compile` decides how to
    loop over examples.

    Raises:
        UnsupportedLayerError: The layer draws random numbers that cannot be
            repeated when it is called again. The gradients would belong to
            another function.
    """
    # One body: both ways share the rows, the masks and the draws of the call.
    layer = call.layer
    if not call.cotangents:
        return [], "from its graph"
    batch = call.cotangents[0].shape[0]
    arguments = keras.tree.flatten((call.args, call.kwargs))
    mapped = [
        index
        for index, leaf in enumerate(arguments)
        if tf.is_tensor(leaf) and leaf.shape.rank and leaf.shape[0] == batch
    ]
    draws = call.kept or RepeatedDraws()
    inputs = [arguments[index] for index in mapped]
    # Layers inside read the Keras masks of tensors.
    masks = {
        index: mask_of(arguments[index])
        for index in mapped
        if mask_of(arguments[index]) is not None
    }
    rows = (inputs, call.cotangents, masks, draws.rows(batch))

    def one_example(
        rows: tuple[list[Any], list[Any], dict[int, Any], dict[int, Any]],
    ) -> list[tf.Tensor]:
        *tensors, numbers = rows
        inputs, cotangents, masks = keras.tree.map_structure(
            lambda row: row[tf.newaxis], tensors
        )
        leaves = list(arguments)
        for index, row in zip(mapped, inputs, strict=True):
            leaves[index] = row
            set_mask(row, masks.get(index))
        args, kwargs = keras.tree.pack_sequence_as(
            (call.args, call.kwargs), leaves
        )
        with draws.repeating(layer, numbers):
            return _gradients(layer, variables, args, kwargs, cotangents)

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        with within(), draws.repeating(layer):
            yield

    found = gradients_from_graph(
        call,
        variables,
        again,
        mapped=mapped,
        draws=draws.numbers,
    )
    if found is not None:
        return found, "from its graph"
    loop = _loop(layer, jit_compile, draws.operations)
    with within():
        built = loop(one_example, rows, variables)
    pairs: Gradients = [
        (
            variable,
            MaterializedRecords(tf.reshape(each, [batch, *variable.shape])),
        )
        for variable, each in zip(variables, built, strict=True)
    ]
    return pairs, "example by example"


def _gradients(
    layer: keras.Layer,
    variables: list[keras.Variable],
    args: Any,
    kwargs: Any,
    cotangents: list[tf.Tensor],
) -> list[tf.Tensor]:
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch([variable.value for variable in variables])
        # Past a `__call__` of its own class: these are arguments of `call`.
        outputs = keras.Layer.__call__(layer, *args, **kwargs)
        outputs = [
            # The layer must give the example one row.
            tf.ensure_shape(output, cotangent.shape)
            for output, cotangent in zip(
                float_outputs(outputs), cotangents, strict=True
            )
        ]
    gradients = tape.gradient(
        outputs,
        [variable.value for variable in variables],
        output_gradients=cotangents,
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def _loop(
    layer: keras.Layer, jit_compile: bool, operations: list[tf.Operation]
) -> Callable[..., list[tf.Tensor]]:
    """Returns the way to map over examples that works for this layer.

    The operations are those of its first call.
    """
    if tf.executing_eagerly():
        return _one_by_one
    kinds = operation_types([each.node_def for each in operations])
    loops = bool(kinds & LOOPS)
    recurrent = any(
        isinstance(sub, keras.layers.RNN) for sub in layers_of(layer)
    )
    if jit_compile:
        # XLA has no vectorized `tf.while_loop`.
        if recurrent or loops:
            return _one_by_one
    # TensorFlow 2.21 loses memory there (`mapped_examples.py`). Remove this
    # when it is not supported any more.
    elif BATCHED_PRODUCT in kinds or (loops and not recurrent):
        return _one_by_one
    return _all_at_once


def _all_at_once(
    function: Callable[..., Any], rows: Any, variables: list[keras.Variable]
) -> list[tf.Tensor]:
    try:
        return tf.vectorized_map(function, rows, fallback_to_while_loop=False)
    except (NotImplementedError, TypeError, ValueError):
        # An operation cannot be vectorized, or its results have another shape
        # for each example.
        return _one_by_one(function, rows, variables)


def _one_by_one(
    function: Callable[..., Any], rows: Any, variables: list[keras.Variable]
) -> list[tf.Tensor]:
    signature = [
        tf.TensorSpec(variable.shape, variable.dtype) for variable in variables
    ]
    return tf.map_fn(function, rows, fn_output_signature=signature)


def hook_of_model(model: keras.Model) -> Hook:
    """Returns one hook for all weights of a model, which is called eagerly."""
    return Hook(model, _gradients_by_row, _called_by_row)


def _called_by_row(opened: OpenCall) -> tuple[Any, Any]:
    """Calls the model for each row, and keeps the tape of each call."""
    layer, original, args, kwargs, watch = opened
    variables = [variable.value for variable in trained_variables(layer)]
    batch = keras.tree.flatten(args[0])[0].shape[0]
    draws = RepeatedDraws()
    with draws.noting():
        opened.outputs()
    numbers = draws.rows(batch)
    rows: list[Any] = []
    calls: list[tuple[tf.GradientTape, list[tf.Tensor]]] = []
    for row in range(batch):
        one = keras.tree.map_structure(
            lambda leaf, row=row: leaf[row : row + 1], args[0]
        )
        own = {place: drawn[row] for place, drawn in numbers.items()}
        with (
            draws.repeating(layer, own),
            tf.GradientTape(watch_accessed_variables=False) as tape,
        ):
            tape.watch(variables)
            rows.append(original(one, *args[1:], **kwargs))
        calls.append((tape, float_outputs(rows[-1])))
    outputs = keras.tree.map_structure(_rows_joined, *rows)
    watch(float_outputs(outputs))
    return outputs, calls


def _rows_joined(*rows: Any) -> Any:
    joined = tf.concat(rows, axis=0)
    if mask_of(rows[0]) is not None:
        set_mask(joined, tf.concat([mask_of(row) for row in rows], axis=0))
    return joined


def _gradients_by_row(call: LayerCall) -> Gradients:
    variables = trained_variables(call.layer)
    built = [
        tape.gradient(
            outputs,
            [variable.value for variable in variables],
            output_gradients=[
                cotangent[row : row + 1] for cotangent in call.cotangents
            ],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        for row, (tape, outputs) in enumerate(call.kept)
    ]
    return [
        (variable, MaterializedRecords(tf.stack(list(map(_dense, each)))))
        for variable, each in zip(
            variables, zip(*built, strict=True), strict=True
        )
    ]


def _dense(gradient: Any) -> tf.Tensor:
    return tf.convert_to_tensor(gradient)
