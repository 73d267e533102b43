"""The table of rules: layer class to the gradients of its variables.

A rule answers for one call of a layer. It is used for layers of exactly the
registered class (a subclass may do anything in its `call`) whose options it
understands; all others go through `vectorized.py`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.gradients.records import GradientRecords


class LayerCall(NamedTuple):
    """One call of a layer, seen from the backward pass.

    Attributes:
        layer: The layer.
        args: Its positional arguments, batch first.
        kwargs: Its keyword arguments.
        cotangents: The gradient of the summed loss with respect to each float
            output, in `keras.tree` order; for a layer with an `activation`,
            to what goes into it.
    """

    layer: keras.Layer
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cotangents: list[tf.Tensor]

    @property
    def inputs(self) -> tf.Tensor:
        """The argument of a layer that has one, `[batch, ...]`."""
        return self.args[0] if self.args else self.kwargs["inputs"]


# One entry per variable the layer owns.
Gradients = list[tuple[keras.Variable, GradientRecords]]
Rule = Callable[[LayerCall], Gradients]


class _Entry(NamedTuple):
    rule: Rule
    applies: Callable[[keras.Layer], bool]


_RULES: dict[type[keras.Layer], _Entry] = {}


def register(
    layer_class: type[keras.Layer],
    applies: Callable[[keras.Layer], bool] = lambda layer: True,
) -> Callable[[Rule], Rule]:
    """Makes the decorated function the rule of a layer class.

    Args:
        layer_class: The exact class.
        applies: Whether the rule understands this layer's options.
    """

    def decorate(rule: Rule) -> Rule:
        _RULES[layer_class] = _Entry(rule, applies)
        return rule

    return decorate


def rule_for(layer: keras.Layer) -> Rule | None:
    """Returns the rule of a built layer, `None` if there is none."""
    entry = _RULES.get(type(layer))
    if entry is None or "call" in vars(layer) or not entry.applies(layer):
        return None
    return entry.rule


def has_plain_kernel(layer: keras.Layer) -> bool:
    """Whether the layer's weights are what its class documents.

    False for LoRA and quantized layers, and where sublayers (an activation
    with weights) are hidden inside the call.
    """
    return (
        not getattr(layer, "lora_enabled", False)
        and getattr(layer, "quantization_mode", None) is None
        and not any(sub.trainable_variables for sub in layer._layers)
    )


def trainable(pairs: Gradients) -> Gradients:
    """Returns the pairs whose variable is trained."""
    return [pair for pair in pairs if pair[0].trainable]
