"""The rule of `TimeDistributed`, which uses the rule of the layer inside.

The layer inside is called once, with every step as an example of its own. Then
the gradients of the steps of an example are added up.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients import registry
from keras_dp.keras_internals import takes_mask, takes_training


class _Kept(NamedTuple):
    """The call of the layer inside, without cotangents."""

    call: registry.LayerCall
    rule: registry.Rule
    steps: int


def _has_rule_inside(layer: keras.Layer) -> bool:
    inner = layer.layer
    return (
        registry.rule_for(inner) is not None
        # `_observe` uses the layer's `call`. A quantized layer has another.
        and getattr(inner, "quantization_mode", None) is None
        and not isinstance(inner, keras.layers.BatchNormalization)
    )


def _observe(opened: registry.OpenCall) -> tuple[Any, _Kept]:
    layer, names = opened.layer, ("inputs", "training", "mask")
    given = dict(zip(names, opened.args, strict=False)) | opened.kwargs
    inner, inputs = layer.layer, given["inputs"]
    entry = registry.entry_of(inner)
    if entry is None:
        raise RuntimeError(f"Layer {inner.path!r} was changed after its check.")
    steps = inputs.shape[1]
    if steps is None:
        raise UnsupportedLayerError(
            f"Layer {layer.path!r} must be called on sequences of a static "
            f"length. Received: shape={tuple(inputs.shape)!r}. Pad the "
            "sequences to one length."
        )
    rows, options = _merged(inputs), _options(inner, given)
    outputs, kept = entry.observe(
        registry.OpenCall(inner, inner.call, (rows,), options, opened.watch)
    )
    call = registry.LayerCall(inner, (rows,), options, [], kept)
    outputs = tf.reshape(outputs, [-1, steps, *outputs.shape[1:]])
    return outputs, _Kept(call, entry.rule, steps)


def _options(inner: keras.Layer, given: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if takes_mask(inner) and given.get("mask") is not None:
        options["mask"] = _merged(given["mask"])
    if takes_training(inner):
        options["training"] = given.get("training")
    return options


def _merged(tensor: Any) -> tf.Tensor:
    """Returns `[batch, steps, ...]` as `[batch * steps, ...]`."""
    tensor = tf.convert_to_tensor(tensor)
    batch, steps, *rest = tensor.shape
    return tf.reshape(tensor, [batch * steps, *rest])


@registry.register(
    keras.layers.TimeDistributed, _has_rule_inside, observe=_observe
)
def time_distributed(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the variables of the layer inside."""
    kept = call.kept
    pairs = kept.rule(
        kept.call._replace(
            cotangents=call.cotangents, static_shapes=call.static_shapes
        )
    )
    ones = tf.ones([kept.call.inputs.shape[0]])
    return [
        (variable, records.grouped(kept.steps, ones))
        for variable, records in pairs
    ]
