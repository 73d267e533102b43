"""Models that cannot be trained privately, each with its remedy."""

import keras

from keras_dp.errors import UnsupportedLayerError


def check_model(model: keras.Model) -> None:
    """Raises for layers that are known to make examples interact.

    Layers that are not known are left to the self-check.
    """
    for layer in model._flatten_layers():
        if (
            isinstance(layer, keras.layers.BatchNormalization)
            and layer.trainable
        ):
            raise UnsupportedLayerError(
                f"Layer {layer.path!r} is a BatchNormalization in training "
                "mode: it normalizes each example by the others, and keeps "
                "averages of the data without noise. Use GroupNormalization "
                "or LayerNormalization, or freeze it with "
                "layer.trainable = False."
            )
        if layer.activity_regularizer is not None:
            raise UnsupportedLayerError(
                f"Layer {layer.path!r} has an activity regularizer, a loss on "
                "the whole batch that cannot be split by example. Remove it, "
                "or add the penalty to the loss as a second output."
            )


def check_added_losses(model: keras.Model) -> None:
    """Raises if a layer called `add_loss`, after the model was called."""
    for layer in model._flatten_layers():
        if layer._losses:
            raise UnsupportedLayerError(
                f"Layer {layer.path!r} calls add_loss, a loss on the whole "
                "batch that cannot be split by example. Return the quantity "
                "as an output of the model and give it a loss in compile()."
            )
