"""Which layer makes two passes differ? Asked only after they did."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp.gradients.checks.rows import differing_rows, has_rows
from keras_dp.gradients.checks.trial import Trial
from keras_dp.gradients.layer_calls import current_call, replaced_call
from keras_dp.keras_internals import layers_of

_Call = tuple[keras.Layer, Any]


def differing_layer(
    trial: Trial,
    changed: Any,
    kept: np.ndarray | None,
    rows: np.ndarray | None = None,
    *,
    training: bool = True,
) -> str:
    """Returns a sentence that names the first layer whose outputs differ.

    Empty if there is none: then the difference is in the backward pass.

    Args:
        trial: The model and its batch.
        changed: Inputs of the second pass.
        kept: Rows to compare, all by default.
        rows: Which row of the first pass each row of the second one was.
        training: How the model is called.
    """
    first, second = [
        _outputs(trial, inputs, training) for inputs in (trial.inputs, changed)
    ]
    for (layer, one), (_, two) in zip(first, second, strict=False):
        pairs = zip(*map(keras.tree.flatten, (one, two)), strict=False)
        if any(_differ(trial, a, b, kept, rows) for a, b in pairs):
            return (
                f" The first layer to do so is {layer.path!r} of class "
                f"{type(layer).__name__}."
            )
    return ""


def _differ(
    trial: Trial,
    one: Any,
    two: Any,
    kept: np.ndarray | None,
    rows: np.ndarray | None,
) -> bool:
    if rows is not None and has_rows(one, trial.batch):
        one = tf.gather(one, rows)
    differing = differing_rows(one, two, trial.batch, trial.tolerance)
    return bool(differing.any() if kept is None else differing[kept].any())


def _outputs(trial: Trial, inputs: Any, training: bool) -> list[_Call]:
    """Returns the outputs of all layers without layers inside, in order."""
    calls: list[_Call] = []
    layers = [
        layer
        for layer in layers_of(trial.engine.model)
        if len(layers_of(layer)) == 1
    ]
    trial.restore()
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(_noting(layer, calls))
        trial.engine.call(inputs, training=training)
    return calls


@contextlib.contextmanager
def _noting(layer: keras.Layer, calls: list[_Call]) -> Iterator[None]:
    original: Callable[..., Any] = current_call(layer)

    def call(*args: Any, **kwargs: Any) -> Any:
        outputs = original(*args, **kwargs)
        calls.append((layer, outputs))
        return outputs

    with replaced_call(layer, call):
        yield
