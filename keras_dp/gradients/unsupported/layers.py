"""Refuses layers that cannot be trained privately, and says what to do."""

from collections.abc import Iterator

import keras

from keras_dp.errors import UnsupportedLayerError
from keras_dp.keras_internals import (
    adds_losses,
    layers_of,
    own_trainable_variables,
    passes_training_on,
)

# In Keras 3.15 `Equalization` takes one histogram of the whole batch.
MIXING = (keras.layers.MixUp, keras.layers.CutMix, keras.layers.Equalization)

# They normalize over the axes, or divide the axis, that `axis` names.
_NORMALIZING = (
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.RMSNormalization,
)

# The largest number of layers that are named for one reason.
_SHOWN = 8

NORMALIZES_BY_BATCH = (
    "BatchNormalization in training mode: it normalizes each example by the "
    "others, and keeps averages of the data without noise. Release its "
    'statistics with make_private(..., batch_statistics="auto") or '
    "compile(..., batch_statistics=...), replace it by "
    "GroupNormalization with keras_dp.replace_batch_normalization(model), or "
    "freeze it with layer.trainable = False. A functional model of Keras 3 "
    "trains it even where it was called with training=False."
)


def check_model(
    model: keras.Model, *, releases_statistics: bool = False
) -> None:
    """Raises for layers that are known to be impossible to train privately.

    The self-check looks for others. Whether batch normalization is in training
    mode can depend on the call. `rules.batch_normalization` then finds it. The
    model need not be built.
    """
    in_training = {id(layer) for layer in _normalizations(model)}
    refused: list[tuple[keras.Layer, str]] = []
    for layer in layers_of(model):
        reasons = list(_reasons(layer))
        if is_trained_normalization(layer):
            if releases_statistics:
                reasons += _reasons_not_to_release(layer)
            elif id(layer) in in_training or _has_own_call(layer):
                reasons.append(NORMALIZES_BY_BATCH)
        refused += [(layer, reason) for reason in reasons]
    check_none_refused(refused)


def check_none_refused(refused: list[tuple[keras.Layer, str]]) -> None:
    """Raises if there is a refused layer, each with a reason and what to do.

    The message has one line for each reason, with the paths of the first layers
    that it holds for.
    """
    if not refused:
        return
    paths: dict[str, list[str]] = {}
    for layer, reason in refused:
        known = paths.setdefault(reason, [])
        # Keras gives a layer its path when it is built. Some are never built.
        path = layer.path or layer.name
        if path not in known:
            known.append(path)
    raise UnsupportedLayerError(
        "The model has layers that cannot be trained privately.\n"
        + "\n".join(
            f"{_some_of(names)}: {reason}" for reason, names in paths.items()
        )
    )


def _some_of(names: list[str]) -> str:
    """Returns the first names, and how many more there are."""
    shown, more = names[:_SHOWN], len(names) - _SHOWN
    return ", ".join(map(repr, shown)) + (f" and {more} more" * (more > 0))


def _reasons(layer: keras.Layer) -> Iterator[str]:
    if layer.activity_regularizer is not None:
        yield (
            "its activity regularizer is a loss on the whole batch that cannot "
            "be split by example. Remove it, or add the penalty to the loss "
            "as a second output."
        )
    if isinstance(layer, MIXING):
        # It mixes at random, so that the self-check can miss it.
        yield (
            f"{type(layer).__name__} mixes the examples of a batch, so that "
            "the gradient of one depends on others. Remove it; other "
            "augmentation is unaffected."
        )
    if isinstance(layer, _NORMALIZING) and _names_batch_axis(layer):
        yield (
            "must not normalize over the batch axis, because examples would "
            f"interact. Received: axis={layer.axis!r}. Normalize over the "
            "other axes."
        )
    if isinstance(layer, keras.layers.RNN) and layer.stateful:
        yield (
            "stateful=True keeps the states of the examples for the next "
            "batch, which has other examples. Make it with stateful=False, and "
            "pass initial_state where a state belongs to the example."
        )
    if _shares_draws(layer):
        yield (
            "its noise_shape begins with 1, so that all examples of a batch "
            "share one draw. A record that changes the number of batches then "
            "changes the draws of others. Make the first entry None."
        )
    if any(
        variable.trainable and variable.overwrite_with_gradient
        for variable in own_trainable_variables(layer)
    ):
        yield (
            "training would overwrite its scales by statistics of a batch "
            'instead of gradients, as quantize("float8") asks. Compute in '
            'mixed_bfloat16 instead, or train LoRA after quantize("int8").'
        )


def _names_batch_axis(layer: keras.Layer) -> bool:
    axes = [layer.axis] if isinstance(layer.axis, int) else layer.axis
    built = layer.get_build_config() or {}
    # Without a shape, only axes that count from the front are known.
    rank = len(built.get("input_shape", ()))
    return 0 in axes or -rank in axes


def _shares_draws(layer: keras.Layer) -> bool:
    shape = getattr(layer, "noise_shape", None)
    return isinstance(shape, tuple | list) and shape[:1] in ((1,), [1])


def _reasons_not_to_release(layer: keras.Layer) -> Iterator[str]:
    if type(layer) is not keras.layers.BatchNormalization or (
        layer.renorm or layer.synchronized
    ):
        yield (
            "must be a plain BatchNormalization to normalize by "
            f"released statistics. Received: class {type(layer).__name__}, "
            f"renorm={layer.renorm!r}, synchronized={layer.synchronized!r}. "
            "Use keras.layers.BatchNormalization without these options, or "
            "freeze the layer with layer.trainable = False."
        )


def _normalizations(layer: keras.Layer) -> Iterator[keras.Layer]:
    """Yields the batch normalization that trains whenever the model does."""
    if isinstance(layer, keras.layers.BatchNormalization):
        yield layer
    elif passes_training_on(layer):
        for each in layer.layers:
            yield from _normalizations(each)


def is_trained_normalization(layer: keras.Layer) -> bool:
    """Whether it is a batch normalization that may train."""
    return (
        isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    )


def _has_own_call(layer: keras.Layer) -> bool:
    """Whether a subclass may use the argument `training` in its own way."""
    return type(layer).call is not keras.layers.BatchNormalization.call


def check_added_losses(model: keras.Model) -> None:
    """Raises if layers called `add_loss` in the last call of the model."""
    reason = (
        "calls add_loss, a loss on the whole batch that cannot be split by "
        "example. Return the quantity as an output of the model and give it a "
        "loss in compile(), or leave the loss out with "
        "layer.add_loss = lambda loss: None."
    )
    check_none_refused(
        [(layer, reason) for layer in layers_of(model) if adds_losses(layer)]
    )
