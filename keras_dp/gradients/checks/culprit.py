"""Names the layer that is to blame, after two calls of a model differed.

Two calls differ if an example got another result beside other examples or in
another row.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp.gradients.checks.trial import Trial
from keras_dp.gradients.layer_calls import current_call, replaced_call
from keras_dp.keras_internals import layers_of

# Differences below this are rounding, whatever the size of what differs.
_NEGLIGIBLE = 1e-7


class _Call(NamedTuple):
    """A call of a layer that returned."""

    layer: keras.Layer
    outputs: list[Any]


@contextlib.contextmanager
def _noting(layers: list[keras.Layer]) -> Iterator[list[_Call]]:
    """Notes the calls of layers, as they end."""
    calls: list[_Call] = []

    def noted(
        layer: keras.Layer, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            outputs = original(*args, **kwargs)
            leaves = filter(tf.is_tensor, keras.tree.flatten(outputs))
            calls.append(_Call(layer, list(leaves)))
            return outputs

        return call

    with contextlib.ExitStack() as stack:
        for layer in layers:
            call = noted(layer, current_call(layer))
            stack.enter_context(replaced_call(layer, call))
        yield calls


def rows_differ(
    one: np.ndarray, two: np.ndarray, kept: np.ndarray, tolerance: float
) -> bool:
    """Whether a row differs, relative to its size plus the mean of all sizes.

    Only the rows `kept` are compared, and rows of `one` that are not finite are
    skipped.
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
    is empty if none of them differs for the examples `kept`. `rows` has the
    example of each row of `changed`. By default, each is in its own row.
    """
    back = np.arange(trial.batch) if rows is None else np.argsort(rows)
    first = _numbers_of(trial, trial.inputs, training)
    second = _numbers_of(trial, changed, training)
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


def _numbers_of(
    trial: Trial, inputs: Any, training: bool
) -> list[tuple[keras.Layer, list[np.ndarray]]]:
    """Returns what the layers without layers inside, and the model, return.

    Calls inside a loop that is traced have no values, and are left out.
    """
    model = trial.engine.model
    layers = [each for each in layers_of(model) if len(layers_of(each)) == 1]
    with _noting(layers) as calls:
        outputs = trial.outputs(inputs, training=training)
    calls.append(_Call(model, keras.tree.flatten(outputs)))
    return [
        (
            call.layer,
            [
                np.asarray(tf.cast(leaf, tf.float32))
                for leaf in call.outputs
                if leaf.dtype.is_floating
                or leaf.dtype.is_integer
                or leaf.dtype.is_bool
            ],
        )
        for call in calls
        if not any(map(tf.is_symbolic_tensor, call.outputs))
    ]
