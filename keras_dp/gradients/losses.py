"""The loss of each example, as Keras computes that of a batch of one.

Keras reduces a loss over the batch: means, masks and sample weights couple
examples. Evaluated on batches of one, vectorized over examples and over the
loss only, nothing is coupled, whatever the loss does.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf


class ExampleLosses(NamedTuple):
    """Losses of a batch, example by example.

    Attributes:
        total: What is minimized, loss weights included, `[batch]`.
        parts: For a model of several losses, each of them unweighted,
            `[batch]`; empty for a single loss.
    """

    total: tf.Tensor
    parts: list[tf.Tensor]


def example_losses(
    compiled_loss: Any,
    targets: Any,
    outputs: Any,
    sample_weight: Any,
    batch: int,
) -> ExampleLosses:
    """Returns the losses of a batch, example by example.

    Args:
        compiled_loss: The loss that `keras.Model.compile` made, built.
        targets: Nest with leaves `[batch, ...]`.
        outputs: What the model returned, leaves `[batch, ...]`, with their
            Keras masks.
        sample_weight: Nest with leaves `[batch, ...]`, or `None`.
        batch: Number of examples.

    Raises:
        ValueError: The loss is not built, or a leaf does not have the batch
            as its first axis.
    """
    if not compiled_loss.built:
        raise ValueError(
            "`compiled_loss` must be built. Call it on a batch of targets and "
            "outputs first."
        )
    structure = (targets, outputs, sample_weight)
    leaves = keras.tree.flatten(structure)
    masks = [getattr(leaf, "_keras_mask", None) for leaf in leaves]
    given = [leaf for leaf in [*leaves, *masks] if leaf is not None]
    _check_batch(given, batch)

    def one_example(rows: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        remaining = iter(rows)
        filled = [
            None if leaf is None else next(remaining)[tf.newaxis]
            for leaf in [*leaves, *masks]
        ]
        values, value_masks = filled[: len(leaves)], filled[len(leaves) :]
        for value, mask in zip(values, value_masks, strict=True):
            if value is not None and mask is not None:
                value._keras_mask = mask
        y_true, y_pred, weight = keras.tree.pack_sequence_as(structure, values)
        with _untracked(compiled_loss) as parts:
            total = compiled_loss(y_true, y_pred, weight)
        return total, parts

    total, parts = tf.vectorized_map(
        one_example, [tf.convert_to_tensor(leaf) for leaf in given]
    )
    return ExampleLosses(tf.reshape(total, [batch]), parts)


def batch_losses(compiled_loss: Any, targets: Any, outputs: Any) -> list[Any]:
    """Returns each loss of a whole batch, as Keras computes it, unweighted."""
    with _untracked(compiled_loss) as parts:
        total = compiled_loss(targets, outputs, None)
    return parts or [total]


def _check_batch(leaves: list[Any], batch: int) -> None:
    for leaf in leaves:
        shape = tuple(leaf.shape)
        if not shape or shape[0] != batch:
            raise ValueError(
                "Targets, sample weights, masks and outputs of the model must "
                f"have the batch of {batch} examples as their first axis. "
                f"Received: shape={shape!r}."
            )


class _PartRecorder:
    """Stands in for the metric that tracks one of several losses."""

    def __init__(self, parts: list[tf.Tensor]) -> None:
        self._parts = parts

    def update_state(self, value: tf.Tensor, sample_weight: Any = None) -> None:
        del sample_weight
        self._parts.append(value)


@contextlib.contextmanager
def _untracked(compiled_loss: Any) -> Iterator[list[tf.Tensor]]:
    """Makes the compiled loss tell its parts instead of averaging them."""
    parts: list[tf.Tensor] = []
    trackers = list(compiled_loss._metrics)
    compiled_loss._metrics[:] = [_PartRecorder(parts) for _ in trackers]
    try:
        yield parts
    finally:
        compiled_loss._metrics[:] = trackers
