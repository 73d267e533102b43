"""Names the layer that takes batches of one size only, after an error."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients.layer_calls import current_call, replaced_call
from keras_dp.gradients.unsupported.layers import check_model
from keras_dp.keras_internals import (
    layers_of,
    replaced_attribute,
    trace_of,
)

# Numbers of rows that the model is tried with. No width is likely to be one.
_TRIED = (1013, 1019)


class _Called:
    """The calls of the layers of a model, in one call of the model.

    Attributes:
        failed: The first layer or operation whose own call raised, and the
            error; `None` if none did.
        lengths: For each call that was over, the layer and the first axes of
            what it returned.
    """

    def __init__(self) -> None:
        self.failed: tuple[Any, str] | None = None
        self.lengths: list[tuple[Any, list[int | None]]] = []

    def noting(
        self, layer: Any, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            try:
                outputs = original(*arguments, **options)
            except Exception as error:
                if self.failed is None:
                    self.failed = layer, str(error)
                raise
            tensors = filter(tf.is_tensor, keras.tree.flatten(outputs))
            self.lengths.append(
                (layer, [x.shape[0] for x in tensors if x.shape])
            )
            return outputs

        return call


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
    """Returns the layer that takes one number of rows, `None` without one."""
    first, second = (_called(model, inputs, rows) for rows in _TRIED)
    if first.failed is not None and second.failed is not None:
        (layer, one), (other, two) = first.failed, second.failed
        if layer is other and _reason(one) != _reason(two):
            return layer
        return None
    if first.failed is not None or second.failed is not None:
        return None
    returned = first.lengths[-1:], second.lengths[-1:]
    if _fixed(*returned) is None:
        return None
    return _fixed(first.lengths, second.lengths)


def _called(model: keras.Model, inputs: Any, rows: int) -> _Called:
    """Traces the model for a number of rows, and returns what happened."""
    found = _Called()
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
    with contextlib.ExitStack() as stack:
        for layer in layers:
            call = found.noting(layer, current_call(layer))
            stack.enter_context(replaced_call(layer, call))
        for each in operations:
            call = found.noting(each, each.call)
            stack.enter_context(replaced_attribute(each, "call", call))
        stack.enter_context(contextlib.suppress(Exception))
        call = tf.function(lambda x: model(x, training=False), autograph=False)
        trace_of(call, specs)
    return found


def _reason(text: str) -> str:
    """Returns what TensorFlow says of an operation, without its inputs."""
    found, operation, _ = text.partition(" for '{{node")
    return found if operation else ""


def _fixed(
    one: list[tuple[Any, list[int | None]]],
    two: list[tuple[Any, list[int | None]]],
) -> Any:
    """Returns the first layer that returned as many rows in both calls."""
    for (layer, lengths), (_, others) in zip(one, two, strict=False):
        if lengths and lengths == others and None not in lengths:
            return layer
    return None
