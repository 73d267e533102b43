"""Checks the engine on the user's own data before anything is released."""

from typing import Any

import keras
import tensorflow as tf

from keras_dp.gradients import batch_losses, check_loss_splits, self_check
from keras_dp.keras_internals import counting_one_replica, trace_of
from keras_dp.training.batch_computation import BatchComputation
from keras_dp.training.data_adapter import PhysicalStep, example_batch
from keras_dp.training.example_metrics import masks_of, set_masks
from keras_dp.training.step_parts import StepParts


class EngineCheck:
    """Runs the self-check once for each size of a physical batch."""

    def __init__(self, parts: StepParts, computation: BatchComputation) -> None:
        self._parts, self._computation = parts, computation
        self._checked: set[int] = set()

    def run(self, step: PhysicalStep) -> None:
        """Checks the engine on the first batch of each size that tells."""
        batch = keras.tree.flatten(step.x)[0].shape[0]
        examples = self._parts.options.self_check_examples
        if not examples or batch in self._checked:
            return
        x, y, tells = example_batch(step, examples)
        rows = max(2, batch)
        finite = self_check(
            self._computation.engine,
            x,
            self._losses_of(y, rows),
            rows,
            examples=examples,
            eagerly=self._parts.options.run_eagerly,
        )
        if finite and tells:
            self._checked.add(batch)

    def _losses_of(self, y: Any, rows: int) -> Any:
        """Returns the losses of outputs, once they are found to split."""

        # One function for all passes: vectorizing is traced once.
        @tf.function(autograph=False)
        def both_losses(outputs: Any, masks: Any) -> Any:
            set_masks(outputs, masks)
            losses = self._computation.losses(y, outputs, None, rows)
            with counting_one_replica():
                wholes = batch_losses(self._parts.loss, y, outputs)
            # Nobody asks for their gradients, which would be traced.
            return losses, [tf.stop_gradient(whole) for whole in wholes]

        def run(outputs: Any, masks: Any) -> Any:
            # A call that traces would count in TensorFlow's warning of those.
            return trace_of(both_losses, outputs, masks)(outputs, masks)

        def losses_of(outputs: Any) -> tf.Tensor:
            masks = masks_of(outputs)
            losses, wholes = run(outputs, masks)
            if not tf.executing_eagerly():
                return losses.total  # Compared in the call that is eager.
            split = losses
            if any(mask is not None for mask in masks):
                # Keras's own losses weigh examples by their unmasked entries.
                plain = keras.tree.map_structure(tf.identity, outputs)
                split, wholes = run(plain, [None] * len(masks))
            for part, whole in zip(
                split.parts or [split.total], wholes, strict=True
            ):
                check_loss_splits(part, whole)
            return losses.total

        return losses_of
