"""The table of rules: layer class to the gradients of its variables.

A rule answers for one call of a layer. It is used for layers of the registered
class whose options it understands, and of those subclasses that change nothing
of what the class computes; all others go through `vectorized.py`.
"""

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.gradients.layer_calls import (
    activation_of,
    float_outputs,
    is_replaced,
    trained_variables,
    without_activation,
)
from keras_dp.gradients.records.records import GradientRecords
from keras_dp.keras_internals import sublayers_of


class LayerCall(NamedTuple):
    """One call of a layer, seen from the backward pass.

    Attributes:
        layer: The layer.
        args: Its positional arguments, batch first.
        kwargs: Its keyword arguments.
        cotangents: The gradient of the summed loss with respect to each float
            output, in `keras.tree` order; for a layer with an `activation`,
            to what goes into it; for an observed layer, to each of
            `Observed.watched`.
        kept: Values that the layer's observer kept, `None` for other layers.
        static_shapes: Whether no tensor may have a shape that depends on data,
            as XLA needs, and accelerators like it.
    """

    layer: keras.Layer
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cotangents: list[tf.Tensor]
    kept: Any = None
    static_shapes: bool = True

    @property
    def inputs(self) -> tf.Tensor:
        """The argument of a layer that has one, `[batch, ...]`."""
        if self.args:
            return self.args[0]
        first, *_ = self.kwargs.values()
        return first


class Observed(NamedTuple):
    """One call of a layer as its observer makes it.

    Attributes:
        outputs: The outputs of the layer.
        watched: The watched tensors. The rule gets their cotangents.
        kept: Other values of the call that the rule needs.
    """

    outputs: Any
    watched: list[tf.Tensor]
    kept: Any


# One entry per variable that the layer owns; of frozen ones it is not used.
Gradients = list[tuple[keras.Variable, GradientRecords]]
Rule = Callable[[LayerCall], Gradients]
Watch = Callable[[list[tf.Tensor]], None]
# Computes what the layer's own call computes, from its arguments. Tensors to be
# watched are handed over before they are used.
Observer = Callable[
    [keras.Layer, tuple[Any, ...], dict[str, Any], Watch], Observed
]


def called_without_activation(
    layer: keras.Layer,
    original: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    watch: Watch,
) -> Observed:
    """Calls a layer, and watches what goes into its activation.

    Args:
        layer: The layer.
        original: Its call.
        args: Positional arguments.
        kwargs: Keyword arguments.
        watch: See `Watch`.
    """
    activation = activation_of(layer)
    with without_activation(layer):
        outputs = original(*args, **kwargs)
    watched = float_outputs(outputs)
    watch(watched)
    if activation is not None:
        outputs = activation(outputs)
    return Observed(outputs, watched, None)


class Entry(NamedTuple):
    """How the gradients of a layer follow.

    Attributes:
        rule: From one call to the gradients.
        applies: Whether the rule understands the options of a layer.
        observe: Calls the layer where its outputs alone do not tell enough.
            The rule then answers for the layers inside, too.
    """

    rule: Rule
    applies: Callable[[keras.Layer], bool]
    observe: Observer | None


_RULES: dict[type[keras.Layer], list[Entry]] = {}


def register(
    layer_class: type[keras.Layer],
    applies: Callable[[keras.Layer], bool] = lambda layer: True,
    *,
    observe: Observer | None = None,
) -> Callable[[Rule], Rule]:
    """Makes the decorated function a rule of a layer class.

    Args:
        layer_class: The class.
        applies: Whether the rule understands this layer's options. Of several
            rules of a class at most one may.
        observe: Calls the layer while it is hooked. By default it is called
            as it is, without its activation.
    """

    def decorate(rule: Rule) -> Rule:
        entry = Entry(rule, applies, observe)
        _RULES.setdefault(layer_class, []).append(entry)
        return rule

    return decorate


def entry_for(layer: keras.Layer) -> Entry | None:
    """Returns how gradients of a built layer follow, `None` if unknown."""
    return None if is_replaced(layer) else entry_of(layer)


def entry_of(layer: keras.Layer) -> Entry | None:
    """Returns the same for a layer that may be hooked itself."""
    ruled = _ruled_class(type(layer))
    for entry in [] if ruled is None else _RULES[ruled]:
        if entry.applies(layer):
            return entry
    return None


# A subclass may define these anew: none of them takes part in a call.
_WITHOUT_EFFECT = {
    "__doc__",
    "__init__",
    "__module__",
    "__qualname__",
    "build",
    "compute_output_shape",
    "compute_output_spec",
    "from_config",
    "get_config",
}
# Where Keras's own decorators note the public name of a class.
_EXPORTED = "_api_export_"


def _ruled_class(
    layer_class: type[keras.Layer],
) -> type[keras.Layer] | None:
    """Returns the class whose rules hold for a class, `None` if none do.

    That is the nearest ancestor with rules, if no class before it defines what
    the ancestor defines, or anything but methods: a property could stand for a
    weight that the ancestor's call reads.
    """
    for place, ancestor in enumerate(layer_class.__mro__):
        if ancestor in _RULES:
            subclasses = layer_class.__mro__[:place]
            changes = any(_changes(each, ancestor) for each in subclasses)
            return None if changes else ancestor
    return None


def _changes(subclass: type, ancestor: type) -> bool:
    """Whether a subclass could compute something else than its ancestor."""
    return any(
        hasattr(ancestor, name)
        or (name.startswith("__") and name.endswith("__"))
        or not isinstance(value, types.FunctionType | classmethod)
        for name, value in vars(subclass).items()
        if name not in _WITHOUT_EFFECT
        and not name.startswith(_EXPORTED)
        # The compiler's own notes.
        and name not in ("__firstlineno__", "__static_attributes__")
    )


def rule_for(layer: keras.Layer) -> Rule | None:
    """Returns the rule of a built layer, `None` if there is none."""
    entry = entry_for(layer)
    return None if entry is None else entry.rule


def has_plain_kernel(layer: keras.Layer) -> bool:
    """Whether the layer's weights are what its class documents.

    False for LoRA and quantized layers, and where sublayers (an activation
    with weights) are hidden inside the call.
    """
    return (
        not getattr(layer, "lora_enabled", False)
        and getattr(layer, "quantization_mode", None) is None
        and has_no_weights_inside(layer)
    )


def has_no_weights_inside(layer: keras.Layer) -> bool:
    """Whether no sublayer (an activation, say) owns trained weights."""
    return not any(trained_variables(sub) for sub in sublayers_of(layer))
