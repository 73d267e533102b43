"""Reads the call of a layer, and replaces it for a while."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_dp.keras_internals import layers_of, replaced_attribute


def current_call(layer: keras.Layer) -> Callable[..., Any]:
    """Returns what `layer(...)` runs: `quantized_call` if it is quantized."""
    return getattr(layer, _method(layer))


def is_replaced(layer: keras.Layer) -> bool:
    """Whether the call of the layer was replaced on the instance."""
    return _method(layer) in vars(layer)


def functions_of(model: keras.Model) -> list[Any]:
    """Returns what a user can replace of each layer, to see whether it changed.

    These are the layer itself, the call that was set on the instance, and the
    activation. Each of the last two may be `None`.
    """
    return [
        (layer, vars(layer).get(_method(layer)), activation_of(layer))
        for layer in layers_of(model)
    ]


def replaced_call(
    layer: keras.Layer, call: Callable[..., Any]
) -> contextlib.AbstractContextManager[None]:
    """Replaces the call on the instance, which may be replaced already."""
    return replaced_attribute(layer, _method(layer), call)


def activation_of(layer: keras.Layer) -> Callable[..., Any] | None:
    """Returns the attribute `activation` of a layer, `None` without one."""
    return vars(layer).get("activation")


def without_activation(
    layer: keras.Layer,
) -> contextlib.AbstractContextManager[None]:
    """Removes the activation, if the layer has one."""
    if activation_of(layer) is None:
        return contextlib.nullcontext()
    return replaced_attribute(layer, "activation", None)


def trained_variables(layer: keras.Layer) -> list[keras.Variable]:
    """Returns the variables of a layer that a model around it trains.

    The `trainable_variables` of a frozen layer are empty, but those of a model
    around it are not: `enable_lora` of KerasHub freezes all of a backbone, and
    then trains some of its innermost layers.
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
