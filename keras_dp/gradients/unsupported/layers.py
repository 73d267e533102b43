"""Models that cannot be trained privately, each with its remedy."""

import keras

from keras_dp.errors import UnsupportedLayerError
from keras_dp.keras_internals import adds_losses, is_rematerialized, layers_of

# They mix at random, so that the self-check can miss it. In Keras 3.15
# `Equalization` takes one histogram of the whole batch.
_MIXING = (
    keras.layers.MixUp,
    keras.layers.CutMix,
    keras.layers.Equalization,
)


def check_model(
    model: keras.Model, *, releases_statistics: bool = False
) -> None:
    """Raises for layers that mix examples, or that no hook can be put on.

    Layers that are not known to do so are left to the self-check.

    Args:
        model: Built or not.
        releases_statistics: Whether batch normalization uses statistics that
            are released privately.
    """
    for layer in layers_of(model):
        if (
            isinstance(layer, keras.layers.BatchNormalization)
            and layer.trainable
        ):
            _check_normalization(layer, releases_statistics)
        if isinstance(layer, _MIXING):
            raise UnsupportedLayerError(
                f"Layer {layer.path!r} of class {type(layer).__name__} mixes "
                "the examples of a batch, so that the gradient of one depends "
                "on others. Remove it; other augmentation is unaffected."
            )
        if is_rematerialized(layer):
            raise UnsupportedLayerError(
                f"Layer {layer.path!r} was made in a keras.RematScope: it is "
                "called again in the backward pass, where its output cannot "
                "be hooked. Make it outside of the scope."
            )
        if layer.activity_regularizer is not None:
            raise UnsupportedLayerError(
                f"Layer {layer.path!r} has an activity regularizer, a loss on "
                "the whole batch that cannot be split by example. Remove it, "
                "or add the penalty to the loss as a second output."
            )


def _check_normalization(layer: keras.Layer, releases_statistics: bool) -> None:
    if not releases_statistics:
        raise UnsupportedLayerError(
            f"Layer {layer.path!r} is a BatchNormalization in training mode: "
            "it normalizes each example by the others, and keeps averages of "
            "the data without noise. Release its statistics with "
            "compile(..., batch_statistics=...), use GroupNormalization or "
            "LayerNormalization, or freeze it with layer.trainable = False."
        )
    if type(layer) is not keras.layers.BatchNormalization or (
        layer.renorm or layer.synchronized
    ):
        raise UnsupportedLayerError(
            f"Layer {layer.path!r} must be a plain BatchNormalization to "
            "normalize by released statistics. Received: class "
            f"{type(layer).__name__}, renorm={layer.renorm!r}, "
            f"synchronized={layer.synchronized!r}."
        )


def check_added_losses(model: keras.Model) -> None:
    """Raises if a layer called `add_loss`, after the model was called."""
    for layer in layers_of(model):
        if adds_losses(layer):
            raise UnsupportedLayerError(
                f"Layer {layer.path!r} calls add_loss, a loss on the whole "
                "batch that cannot be split by example. Return the quantity "
                "as an output of the model and give it a loss in compile()."
            )
