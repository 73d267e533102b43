"""How a layer is called, and how that is exchanged for a while."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf


def current_call(layer: keras.Layer) -> Callable[..., Any]:
    """Returns what `layer(...)` ends in: of quantized layers another method."""
    return getattr(layer, _method(layer))


def is_replaced(layer: keras.Layer) -> bool:
    """Whether the layer's own call was exchanged on the instance."""
    return _method(layer) in vars(layer)


@contextlib.contextmanager
def replaced_call(
    layer: keras.Layer, call: Callable[..., Any]
) -> Iterator[None]:
    """Sets `layer.call` on the instance, behind the back of Keras's tracking.

    The call from before, possibly another replacement, is put back.
    """
    method = _method(layer)
    before = vars(layer).get(method)
    vars(layer)[method] = call
    try:
        yield
    finally:
        del vars(layer)[method]
        if before is not None:
            vars(layer)[method] = before


def activation_of(layer: keras.Layer) -> Callable[..., Any] | None:
    """Returns the activation that the layer's call ends in, if it has one."""
    return vars(layer).get("activation")


@contextlib.contextmanager
def without_activation(layer: keras.Layer) -> Iterator[None]:
    """Takes the activation away, behind the back of Keras's tracking."""
    activation = activation_of(layer)
    if activation is None:
        yield
        return
    vars(layer)["activation"] = None
    try:
        yield
    finally:
        vars(layer)["activation"] = activation


def float_outputs(outputs: Any) -> list[tf.Tensor]:
    """Returns those outputs of a layer that gradients flow through."""
    return [
        leaf
        for leaf in keras.tree.flatten(outputs)
        if tf.is_tensor(leaf) and leaf.dtype.is_floating
    ]


def _method(layer: keras.Layer) -> str:
    quantized = getattr(layer, "quantization_mode", None) is not None
    return "quantized_call" if quantized else "call"
