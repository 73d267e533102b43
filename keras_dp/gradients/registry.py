"""The table of rules: from the class of a layer to its gradients.

A rule returns the gradients for one call of a layer. It is used for layers of
the registered class whose options it supports, and for subclasses that do not
change what the class computes. All others are called again.
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
        args: There is at least one. The first is `[batch, ...]`.
        cotangents: The gradients of the summed losses with respect to some
            tensors of the call. For the fallback, these are the float outputs
            `[batch, ...]`, in `keras.tree` order. For a rule, they are what its
            observer watched, whose first axis may be another than the batch.
        kept: Values that the layer's observer kept. For the fallback, the
            `RepeatedDraws` of the call. `None` for other layers.
        static_shapes: Whether no tensor may have a shape that depends on data.
            XLA requires it. On an accelerator, such shapes make the host wait.
    """

    layer: keras.Layer
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cotangents: list[tf.Tensor]
    kept: Any = None
    static_shapes: bool = True

    @property
    def inputs(self) -> tf.Tensor:
        """The first argument, `[batch, ...]`."""
        return self.args[0]


# The gradients of the variables that a call used. Entries of frozen variables
# are ignored.
Gradients = list[tuple[keras.Variable, GradientRecords]]
Rule = Callable[[LayerCall], Gradients]


class OpenCall(NamedTuple):
    """A call of a layer that an observer makes.

    Attributes:
        original: Computes the output of the layer.
        watch: Takes the tensors whose cotangents the rule gets, before they are
            used.
    """

    layer: keras.Layer
    original: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    watch: Callable[[list[tf.Tensor]], None]

    def outputs(self) -> Any:
        """Returns what the layer computes of its arguments."""
        return self.original(*self.args, **self.kwargs)


# Returns the outputs of a call, and other values for the rule, `None` for none.
Observer = Callable[[OpenCall], tuple[Any, Any]]


def called_without_activation(opened: OpenCall) -> tuple[Any, None]:
    """Calls a layer, and watches its float outputs before the activation."""
    activation = activation_of(opened.layer)
    with without_activation(opened.layer):
        outputs = opened.outputs()
    opened.watch(float_outputs(outputs))
    return outputs if activation is None else activation(outputs), None


class Entry(NamedTuple):
    """A rule, which layers it supports, and how these are called.

    Attributes:
        applies: Whether the rule supports the options of a layer.
        observe: Calls the layer, and watches what the rule needs the cotangents
            of. The rule gives the gradients of the layers inside, too.
    """

    rule: Rule
    applies: Callable[[keras.Layer], bool]
    observe: Observer


_RULES: dict[type[keras.Layer], list[Entry]] = {}


def register(
    layer_class: type[keras.Layer],
    applies: Callable[[keras.Layer], bool] = lambda layer: True,
    *,
    observe: Observer = called_without_activation,
) -> Callable[[Rule], Rule]:
    """Makes the decorated function a rule of a layer class.

    At most one rule of a class may apply to a layer.
    """

    def decorate(rule: Rule) -> Rule:
        entry = Entry(rule, applies, observe)
        _RULES.setdefault(layer_class, []).append(entry)
        return rule

    return decorate


def entry_for(layer: keras.Layer) -> Entry | None:
    """Returns the entry that applies, `None` where the call was replaced."""
    return None if is_replaced(layer) else entry_of(layer)


def entry_of(layer: keras.Layer) -> Entry | None:
    """Returns the same where a replaced call may be a hook."""
    ruled = _ruled_class(type(layer))
    for entry in [] if ruled is None else _RULES[ruled]:
        if entry.applies(layer):
            return entry
    return None


# A subclass may redefine these, because none of them takes part in a call.
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

    It is the nearest ancestor with rules, if the classes between define only
    methods, and none that the ancestor has. A property could replace a weight
    that the ancestor's call reads.
    """
    for place, ancestor in enumerate(layer_class.__mro__):
        if ancestor in _RULES:
            subclasses = layer_class.__mro__[:place]
            changes = any(_changes(each, ancestor) for each in subclasses)
            return None if changes else ancestor
    return None


def _changes(subclass: type, ancestor: type) -> bool:
    """Whether a subclass could compute something other than its ancestor."""
    return any(
        hasattr(ancestor, name)
        or (name.startswith("__") and name.endswith("__"))
        or not isinstance(value, types.FunctionType | classmethod)
        for name, value in vars(subclass).items()
        if name not in _WITHOUT_EFFECT
        and not name.startswith(_EXPORTED)
        # Python's compiler adds these.
        and name not in ("__firstlineno__", "__static_attributes__")
    )


def rule_for(layer: keras.Layer) -> Rule | None:
    """Returns the rule of a built layer, `None` if there is none."""
    entry = entry_for(layer)
    return None if entry is None else entry.rule


def has_plain_kernel(layer: keras.Layer) -> bool:
    """Whether the layer's weights are what its class documents.

    It is false for layers with LoRA, for quantized layers, and if a sublayer,
    such as an activation, has trained weights.
    """
    return (
        not getattr(layer, "lora_enabled", False)
        and getattr(layer, "quantization_mode", None) is None
        and has_no_weights_inside(layer)
    )


def has_no_weights_inside(layer: keras.Layer) -> bool:
    """Whether no sublayer (an activation, say) owns trained weights."""
    return not any(trained_variables(sub) for sub in sublayers_of(layer))
