"""Which layer makes two passes differ? Asked only after they did."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_dp.gradients.checks.trial import Trial
from keras_dp.gradients.layer_calls import current_call, replaced_call
from keras_dp.keras_internals import layers_of

_Call = tuple[keras.Layer, Any]


def differing_layer(
    trial: Trial,
    changed: Any,
    kept: np.ndarray,
    rows: np.ndarray | None = None,
    *,
    training: bool = True,
) -> str:
    """Returns a sentence that names the first layer whose outputs differ.

    Empty if there is none: then the difference is in the backward pass.

    Args:
        trial: The model and its batch.
        changed: Inputs of the second pass.
        kept: Which rows of the second pass are compared, `[batch]`.
        rows: See `Trial.differ`.
        training: How the model is called.
    """
    first, second = [
        _outputs(trial, inputs, training) for inputs in (trial.inputs, changed)
    ]
    for (layer, one), (_, two) in zip(first, second, strict=False):
        if _has_as_many_leaves(one, two) and trial.differ(one, two, kept, rows):
            return (
                " The first layer to do so is "
                f"{layer.path or layer.name!r} of class "
                f"{type(layer).__name__}."
            )
    return ""


def _has_as_many_leaves(one: Any, two: Any) -> bool:
    one, two = map(keras.tree.flatten, (one, two))
    return len(one) == len(two)


def _outputs(trial: Trial, inputs: Any, training: bool) -> list[_Call]:
    """Returns the outputs of all layers without layers inside, in order."""
    calls: list[_Call] = []
    layers = [
        layer
        for layer in layers_of(trial.engine.model)
        if len(layers_of(layer)) == 1
    ]
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(_noting(layer, calls))
        trial.outputs(inputs, training=training)
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
