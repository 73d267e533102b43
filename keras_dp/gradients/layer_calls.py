"""How a layer is called, and how that is exchanged for a while."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_dp.keras_internals import layers_of


def current_call(layer: keras.Layer) -> Callable[..., Any]:
    """Returns what `layer(...)` ends in: of quantized layers another method."""
    return getattr(layer, _method(layer))


def is_replaced(layer: keras.Layer) -> bool:
    """Whether the layer's own call was exchanged on the instance."""
    return _method(layer) in vars(layer)


def functions_of(model: keras.Model) -> list[Any]:
    """Returns what its layers compute with, where that can be exchanged.

    The layers, the calls that were set on instances, and the activations.
    """
    return [
        (layer, vars(layer).get(_method(layer)), activation_of(layer))
        for layer in layers_of(model)
    ]


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


def trained_variables(layer: keras.Layer) -> list[keras.Variable]:
    """Returns the variables of a layer that a model around it trains.

    A frozen layer may hold layers that are trained: `enable_lora` of KerasHub
    freezes all of a backbone, and then trains some of its innermost layers.
    `layer.trainable_variables` is empty there, and the model's is not.
    """
    return [variable for variable in layer.variables if variable.trainable]


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
