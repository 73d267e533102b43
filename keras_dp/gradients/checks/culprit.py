"""Names the layer that makes two passes differ, after they did."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp.gradients.checks.trial import Trial
from keras_dp.gradients.layer_calls import current_call, replaced_call
from keras_dp.keras_internals import layers_of

# Differences below this are rounding, whatever the size of what differs.
_NEGLIGIBLE = 1e-7

_Call = tuple[keras.Layer, list[np.ndarray]]


def rows_differ(
    one: np.ndarray, two: np.ndarray, kept: np.ndarray, tolerance: float
) -> bool:
    """Whether a row differs, relative to its size plus the mean of all sizes.

    Args:
        one: Numbers, `[batch, ...]`. Rows that are not finite are skipped.
        two: Others, in the same shape.
        kept: Which rows are compared, `[batch]`.
        tolerance: See `Trial.tolerance`.
    """
    one, two = (
        np.reshape(each, [len(kept), -1]).astype(np.float64)
        for each in (one, two)
    )
    sizes = np.linalg.norm(one, axis=1)
    finite = np.isfinite(sizes)
    if not finite.any():
        return False
    with np.errstate(over="ignore", invalid="ignore"):  # Infinity less it.
        errors = np.linalg.norm(one - two, axis=1)
    limit = tolerance * (sizes + sizes[finite].mean()) + _NEGLIGIBLE
    # Negated, so that NaN differs.
    return bool((finite & ~(errors <= limit))[kept].any())


def differing_layer(
    trial: Trial,
    changed: Any,
    kept: np.ndarray,
    rows: np.ndarray | None = None,
    *,
    training: bool = True,
) -> str:
    """Returns a sentence that names the first layer whose outputs differ.

    Only layers without layers inside are compared, and the model. The sentence
    is empty if none of them differs.

    Args:
        trial: The model and its batch.
        changed: The inputs of the second pass.
        kept: Which examples are compared, `[batch]`.
        rows: The example of each row of `changed`. By default, each is in its
            own row.
        training: Whether the model is called as in training.
    """
    back = np.arange(trial.batch) if rows is None else np.argsort(rows)
    first = _outputs(trial, trial.inputs, training)
    second = _outputs(trial, changed, training)
    for (layer, one), (_, two) in zip(first, second, strict=False):
        pairs = [
            (a, b[back])
            for a, b in zip(one, two, strict=False)
            if a.shape == b.shape and a.shape[:1] == (trial.batch,)
        ]
        if any(rows_differ(*pair, kept, trial.tolerance) for pair in pairs):
            return (
                " The first layer to do so is "
                f"{layer.path or layer.name!r} of class "
                f"{type(layer).__name__}."
            )
    return ""


def _outputs(trial: Trial, inputs: Any, training: bool) -> list[_Call]:
    """Returns the outputs of all layers without layers inside, and the model's.

    Those that are not numbers are left out.
    """
    calls: list[_Call] = []
    model = trial.engine.model
    layers = [each for each in layers_of(model) if len(layers_of(each)) == 1]
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(_noting(layer, calls))
        outputs = trial.outputs(inputs, training=training)
    return [*calls, (model, _numbers(outputs))]


def _numbers(outputs: Any) -> list[np.ndarray]:
    return [
        np.asarray(tf.cast(leaf, tf.float32))
        for leaf in keras.tree.flatten(outputs)
        if tf.is_tensor(leaf)
        and not leaf.dtype.is_complex
        and (
            leaf.dtype.is_floating
            or leaf.dtype.is_integer
            or leaf.dtype.is_bool
        )
    ]


@contextlib.contextmanager
def _noting(layer: keras.Layer, calls: list[_Call]) -> Iterator[None]:
    original: Callable[..., Any] = current_call(layer)

    def call(*args: Any, **kwargs: Any) -> Any:
        outputs = original(*args, **kwargs)
        if tf.executing_eagerly():  # Not inside a loop that is traced.
            calls.append((layer, _numbers(outputs)))
        return outputs

    with replaced_call(layer, call):
        yield
