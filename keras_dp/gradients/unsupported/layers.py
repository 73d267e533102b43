"""Models that cannot be trained privately: all layers, each with its remedy."""

from collections.abc import Iterator

import keras

from keras_dp.errors import UnsupportedLayerError
from keras_dp.keras_internals import (
    adds_losses,
    is_rematerialized,
    layers_of,
    own_trainable_variables,
    passes_training_on,
)

# In Keras 3.15 `Equalization` takes one histogram of the whole batch.
_MIXING = (keras.layers.MixUp, keras.layers.CutMix, keras.layers.Equalization)

# So many layers are named for each reason.
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
    """Raises for layers that are known to make examples interact.

    Layers that are not known are left to the self-check, and batch
    normalization whose mode only shows in the call to
    `rules.batch_normalization.refusing_training_mode`.

    Args:
        model: Built or not.
        releases_statistics: Whether batch normalization uses statistics that
            are released privately.

    Raises:
        UnsupportedLayerError: The message has all reasons.
    """
    in_training = {id(layer) for layer in _normalizations(model)}
    refused: list[tuple[keras.Layer, str]] = []
    for layer in layers_of(model):
        reasons = list(_reasons(layer))
        if _is_trained_normalization(layer):
            if releases_statistics:
                reasons += _reasons_not_to_release(layer)
            elif id(layer) in in_training or _has_own_call(layer):
                reasons.append(NORMALIZES_BY_BATCH)
        refused += [(layer, reason) for reason in reasons]
    check_none_refused(refused)


def check_none_refused(refused: list[tuple[keras.Layer, str]]) -> None:
    """Raises if there is a refused layer.

    Args:
        refused: Layers, each with the reason and the remedy.

    Raises:
        UnsupportedLayerError: The message has one line for each reason, with
            the paths of its first layers.
    """
    if not refused:
        return
    paths: dict[str, list[str]] = {}
    for layer, reason in refused:
        known = paths.setdefault(reason, [])
        # Keras gives a layer its path when it is built; some never are.
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
    if isinstance(layer, _MIXING):
        # At random, so that the self-check can miss it.
        yield (
            f"{type(layer).__name__} mixes the examples of a batch, so that "
            "the gradient of one depends on others. Remove it; other "
            "augmentation is unaffected."
        )
    if _shares_draws(layer):
        yield (
            "its noise_shape is 1 for the examples: all of a batch share one "
            "draw, so that a record changes that of others where it changes "
            "the number of batches. Give noise_shape None as its first entry."
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
    if is_rematerialized(layer):
        yield (
            "it is called again in the backward pass, where its output cannot "
            "be hooked, because it was made in a keras.RematScope. Make it "
            "outside of the scope."
        )


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
            f"renorm={layer.renorm!r}, synchronized={layer.synchronized!r}."
        )


def _normalizations(layer: keras.Layer) -> Iterator[keras.Layer]:
    """Yields the batch normalization that surely is in training mode."""
    if isinstance(layer, keras.layers.BatchNormalization):
        yield layer
    elif passes_training_on(layer):
        for each in layer.layers:
            yield from _normalizations(each)


def _is_trained_normalization(layer: keras.Layer) -> bool:
    return (
        isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    )


def _has_own_call(layer: keras.Layer) -> bool:
    """Whether nothing is known of what the argument `training` does."""
    return type(layer).call is not keras.layers.BatchNormalization.call


def check_added_losses(model: keras.Model) -> None:
    """Raises if layers called `add_loss`, after the model was called."""
    reason = (
        "calls add_loss, a loss on the whole batch that cannot be split by "
        "example. Return the quantity as an output of the model and give it a "
        "loss in compile(), or leave the loss out with "
        "layer.add_loss = lambda loss: None."
    )
    check_none_refused(
        [(layer, reason) for layer in layers_of(model) if adds_losses(layer)]
    )
