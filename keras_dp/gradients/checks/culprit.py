"""Names the layer that is to blame, after two calls of a model differed.

Two calls differ if an example got another result beside other examples or in
another row. A model that takes batches of one size only differs in what it
returns for two other sizes, or in why it fails.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients.checks.trial import Trial
from keras_dp.gradients.layer_calls import current_call, replaced_call
from keras_dp.gradients.unsupported.layers import check_model
from keras_dp.keras_internals import (
    layers_of,
    replaced_attribute,
    trace_of,
)

# Differences below this are rounding, whatever the size of what differs.
_NEGLIGIBLE = 1e-7
# Numbers of rows that the model is tried with. No width is likely to be one.
_TRIED = (1013, 1019)


class _Call(NamedTuple):
    """A call of a layer or of a Keras operation, which returned or raised.

    The error is the message of what it raised, "" if it returned.
    """

    layer: Any
    outputs: list[Any]
    error: str = ""


@contextlib.contextmanager
def _noting(layers: list[Any]) -> Iterator[list[_Call]]:
    """Notes the calls of layers and of Keras operations, as they end."""
    calls: list[_Call] = []

    def noted(layer: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                outputs = original(*args, **kwargs)
            except Exception as error:
                calls.append(_Call(layer, [], str(error)))
                raise
            leaves = filter(tf.is_tensor, keras.tree.flatten(outputs))
            calls.append(_Call(layer, list(leaves)))
            return outputs

        return call

    with contextlib.ExitStack() as stack:
        for layer in layers:
            replaced = (
                replaced_call(layer, noted(layer, current_call(layer)))
                if isinstance(layer, keras.Layer)
                else replaced_attribute(layer, "call", noted(layer, layer.call))
            )
            stack.enter_context(replaced)
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


@contextlib.contextmanager
def naming_fixed_rows(model: keras.Model, inputs: Any) -> Iterator[None]:
    """Names the layer that takes batches of one size, if an error is by that.

    Nothing is tried without an error.

    Args:
        model: The model of the user.
        inputs: Its inputs, leaves `[batch, ...]`.

    Raises:
        UnsupportedLayerError: An error came, and the model takes batches of one
            size only, or has a layer that is not supported.
    """
    try:
        yield
    except (RuntimeError, ValueError, tf.errors.OpError):
        check_model(model, releases_statistics=True)
        layer = _of_fixed_rows(model, inputs)
        if layer is None:
            raise
        path = getattr(layer, "path", None) or layer.name
        raise UnsupportedLayerError(
            "`model` must compute an example from this example alone, and take "
            f"batches of any size. Received: layer {path!r} of class "
            f"{type(layer).__name__}, which takes one number of rows only, as "
            "it does with a constant along the batch (an adjacency matrix, a "
            "list of edges, a weight for each row). Give each example what it "
            "needs of others, such as its neighbours, as inputs of its own."
        ) from None


def _of_fixed_rows(model: keras.Model, inputs: Any) -> Any:
    one, two = (_traced(model, inputs, rows) for rows in _TRIED)
    first, second = (
        [each for each in calls if each.error] for calls in (one, two)
    )
    if first and second:
        layer, *_, why = first[0]
        other, *_, other_why = second[0]
        is_of_size = layer is other and _reason(why) != _reason(other_why)
        return layer if is_of_size else None
    if first or second or _fixed(one[-1:], two[-1:]) is None:
        return None
    return _fixed(one, two)


def _traced(model: keras.Model, inputs: Any, rows: int) -> list[_Call]:
    specs = keras.tree.map_structure(
        lambda leaf: tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype), inputs
    )
    layers = layers_of(model)
    operations = [
        each
        for layer in layers
        for each in getattr(layer, "operations", ())
        if not isinstance(each, keras.Layer)
    ]
    call = tf.function(lambda x: model(x, training=False), autograph=False)
    with (
        _noting([*layers, *operations]) as calls,
        contextlib.suppress(Exception),
    ):
        trace_of(call, specs)
    return calls


def _reason(text: str) -> str:
    """Returns what TensorFlow says of an operation, without its inputs."""
    found, operation, _ = text.partition(" for '{{node")
    return found if operation else ""


def _fixed(one: list[_Call], two: list[_Call]) -> Any:
    """Returns the first layer that returned as many rows in both calls."""
    for first, second in zip(one, two, strict=False):
        lengths, others = (
            [each.shape[0] for each in call.outputs if each.shape]
            for call in (first, second)
        )
        if lengths and lengths == others and None not in lengths:
            return first.layer
    return None
