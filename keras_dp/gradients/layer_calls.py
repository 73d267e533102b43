"""Reads the call of a layer, and replaces it for a while."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_dp.keras_internals import layers_of


def current_call(layer: keras.Layer) -> Callable[..., Any]:
    """Returns the method that `layer(...)` runs.

    It is `quantized_call` for a quantized layer, and `call` for any other.
    """
    return getattr(layer, _method(layer))


def is_replaced(layer: keras.Layer) -> bool:
    """Whether the call of the layer was replaced on the instance."""
    return _method(layer) in vars(layer)


def functions_of(model: keras.Model) -> list[Any]:
    """Returns the functions of the layers that a user can replace.

    For each layer these are the layer itself, the call that was set on the
    instance, and the activation. Each of the last two may be `None`.
    """
    return [
        (layer, vars(layer).get(_method(layer)), activation_of(layer))
        for layer in layers_of(model)
    ]


@contextlib.contextmanager
def replaced_call(
    layer: keras.Layer, call: Callable[..., Any]
) -> Iterator[None]:
    """Replaces the call on the instance, without Keras's attribute tracking.

    At the end the instance is as it was before, with an earlier replacement if
    it had one.
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
    """Returns the attribute `activation` of a layer, `None` without one."""
    return vars(layer).get("activation")


@contextlib.contextmanager
def without_activation(layer: keras.Layer) -> Iterator[None]:
    """Removes the activation, without Keras's attribute tracking."""
    activation = activation_of(layer)
    if activation is None:
        yield
        return
    vars(layer)["activation"] = None
    try:
        yield
    finally:
        vars(layer)["activation"] = activation


def trained_variables(layer: keras.Layer) -> list[keras.Variable]:
    """Returns the variables of a layer that a model around it trains.

    A frozen layer may hold layers that are trained: `enable_lora` of KerasHub
    freezes all of a backbone, and then trains some of its innermost layers.
    The `trainable_variables` of a frozen layer are empty, those of the model
    are not.
    """
    return [variable for variable in layer.variables if variable.trainable]


def float_outputs(outputs: Any) -> list[tf.Tensor]:
    """Returns the floating-point tensors among the outputs of a layer."""
    return [
        leaf
        for leaf in keras.tree.flatten(outputs)
        if tf.is_tensor(leaf) and leaf.dtype.is_floating
    ]


def _method(layer: keras.Layer) -> str:
    quantized = getattr(layer, "quantization_mode", None) is not None
    return "quantized_call" if quantized else "call"
