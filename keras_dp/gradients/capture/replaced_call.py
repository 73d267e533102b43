"""Exchanges what a layer does when it is called, for a while."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras


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

    What was there before, possibly another replacement, is put back.
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


def _method(layer: keras.Layer) -> str:
    quantized = getattr(layer, "quantization_mode", None) is not None
    return "quantized_call" if quantized else "call"
