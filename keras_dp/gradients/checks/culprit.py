"""Names the layer that makes two passes differ, after they did."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp.gradients.checks.trial import Digests, Trial
from keras_dp.gradients.layer_calls import current_call, replaced_call
from keras_dp.keras_internals import layers_of

_Call = tuple[keras.Layer, Digests]


def differing_layer(
    trial: Trial,
    changed: Any,
    kept: np.ndarray,
    rows: np.ndarray | None = None,
    *,
    training: bool = True,
) -> str:
    """Returns a sentence that names the first layer whose outputs differ.

    Only layers without layers inside are compared. The sentence is empty if
    none of them differs.

    Args:
        trial: The model and its batch.
        changed: The inputs of the second pass.
        kept: Which rows of the second pass are compared, `[batch]`.
        rows: See `Trial.differ`.
        training: Whether the model is called as in training.
    """
    first, second = [
        _outputs(trial, inputs, training) for inputs in (trial.inputs, changed)
    ]
    for (layer, one), (_, two) in zip(first, second, strict=False):
        if len(one) == len(two) and trial.differ(one, two, kept, rows):
            return (
                " The first layer to do so is "
                f"{layer.path or layer.name!r} of class "
                f"{type(layer).__name__}."
            )
    return ""


def _outputs(trial: Trial, inputs: Any, training: bool) -> list[_Call]:
    """Returns digests of the outputs of all layers without layers inside."""
    calls: list[_Call] = []
    layers = [
        layer
        for layer in layers_of(trial.engine.model)
        if len(layers_of(layer)) == 1
    ]
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(_noting(layer, trial, calls))
        trial.outputs(inputs, training=training)
    return calls


@contextlib.contextmanager
def _noting(
    layer: keras.Layer, trial: Trial, calls: list[_Call]
) -> Iterator[None]:
    original: Callable[..., Any] = current_call(layer)

    def call(*args: Any, **kwargs: Any) -> Any:
        outputs = original(*args, **kwargs)
        if tf.executing_eagerly():  # Not inside a loop that is traced.
            calls.append((layer, trial.digests(outputs)))
        return outputs

    with replaced_call(layer, call):
        yield
