"""Calls a model that no graph can be made of for one example after another.

Only a graph shows whether the rows that a layer sees are the examples. Where
Python code reads the values of tensors there is none. So each example is a
batch of one, with a tape of its own: what the model does with an example cannot
depend on others, unless it keeps them in Python. The whole batch is called for
its random numbers alone, of which each example takes its own.
"""

from typing import Any

import keras
import tensorflow as tf

from keras_dp.gradients.capture.hooks import Hook
from keras_dp.gradients.capture.repeated_draws import RepeatedDraws
from keras_dp.gradients.layer_calls import float_outputs, trained_variables
from keras_dp.gradients.records.records import MaterializedRecords
from keras_dp.gradients.registry import (
    Gradients,
    LayerCall,
    Observed,
    Watch,
)
from keras_dp.keras_internals import mask_of, set_mask


def hook_of(model: keras.Model) -> Hook:
    """Returns one hook for all weights of a model.

    Args:
        model: Built. It is called eagerly.
    """
    return Hook(model, _gradients, _called)


def _called(
    layer: keras.Layer,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    watch: Watch,
) -> Observed:
    """Calls the model for each row, and keeps the tape of each call."""
    variables = [variable.value for variable in trained_variables(layer)]
    batch = keras.tree.flatten(args[0])[0].shape[0]
    draws = RepeatedDraws()
    with draws.noting():
        type(layer).call(layer, *args, **kwargs)
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
            # Past the hook, which replaces the call of the instance.
            rows.append(type(layer).call(layer, one, *args[1:], **kwargs))
        calls.append((tape, float_outputs(rows[-1])))
    outputs = keras.tree.map_structure(_joined, *rows)
    watched = float_outputs(outputs)
    watch(watched)
    return Observed(outputs, watched, calls)


def _joined(*rows: Any) -> Any:
    joined = tf.concat(rows, axis=0)
    if mask_of(rows[0]) is not None:
        set_mask(joined, tf.concat([mask_of(row) for row in rows], axis=0))
    return joined


def _gradients(call: LayerCall) -> Gradients:
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
