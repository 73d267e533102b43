"""Keras's metrics of a physical batch, without its padding."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_dp.gradients import ExampleLosses


def update_metrics(
    private: Any,
    batch: tuple[Any, Any, Any],
    mask: tf.Tensor | None,
    losses: ExampleLosses,
    outputs: Any,
) -> None:
    """Updates the metrics of a private model with the examples of a batch.

    Args:
        private: The `PrivateModel`.
        batch: Inputs, targets and sample weights.
        mask: Shape `[batch]`, false for padding; `None` if there is none.
        losses: Of each example, penalties included.
        outputs: What the model returned.
    """
    x, y, weight = batch

    def update(y: Any, outputs: Any, weight: Any, losses: Any) -> None:
        private._loss_tracker.update_state(losses.total)
        trackers = private._compile_loss.metrics
        for tracker, part in zip(trackers, losses.parts, strict=True):
            tracker.update_state(part)
        private.compute_metrics(x, y, outputs, sample_weight=weight)

    if mask is None:
        update(y, outputs, weight, losses)
        return
    update_with = _without_padding((y, outputs, weight, losses), mask)
    # An empty sample has no metrics, and some would divide by zero.
    tf.cond(
        tf.reduce_any(mask),
        lambda: _then_true(lambda: update(*update_with)),
        lambda: tf.constant(True),
    )


def with_penalties(model: keras.Model, losses: ExampleLosses) -> ExampleLosses:
    """Returns the losses as Keras shows them, with the weights' penalties."""
    penalties = model._get_regularization_losses()
    if not penalties:
        return losses
    penalty = tf.cast(tf.add_n(penalties), losses.total.dtype)
    return losses._replace(total=losses.total + penalty)


def masks_of(outputs: Any) -> list[tf.Tensor | None]:
    """Returns the Keras mask of each output."""
    return [
        getattr(leaf, "_keras_mask", None)
        for leaf in keras.tree.flatten(outputs)
    ]


def set_masks(outputs: Any, masks: list[tf.Tensor | None]) -> None:
    """Puts masks back, which do not survive a compiled function."""
    for leaf, mask in zip(keras.tree.flatten(outputs), masks, strict=True):
        if mask is not None:
            leaf._keras_mask = mask


def _then_true(act: Callable[[], None]) -> tf.Tensor:
    act()
    return tf.constant(True)


def _without_padding(nest: Any, mask: tf.Tensor) -> Any:
    def rows(leaf: Any) -> Any:
        if leaf is None:
            return None
        kept = tf.boolean_mask(leaf, mask)
        keras_mask = getattr(leaf, "_keras_mask", None)
        if keras_mask is not None:
            kept._keras_mask = tf.boolean_mask(keras_mask, mask)
        return kept

    return keras.tree.map_structure(rows, nest)
