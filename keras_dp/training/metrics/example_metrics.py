"""Updates Keras's metrics with the examples of a physical batch."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_dp.errors import MetricsNotCompiledError
from keras_dp.gradients import ExampleLosses
from keras_dp.keras_internals import (
    mask_of,
    penalties_of,
    set_mask,
    weighs_rows,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ExampleMetrics:
    """Keras's own metrics of one compiled model, which are not private.

    Attributes:
        loss_tracker: The metric of the total loss, with weight penalties.
        loss_metrics: A metric for each loss of a model with several, else none.
        compute: Updates the metrics that the user compiled, as
            `keras.Model.compute_metrics` does.
        result: Returns all metrics by name.
        updates: See `keras_internals.metric_updates`, of the private model.
    """

    loss_tracker: keras.metrics.Metric
    loss_metrics: Sequence[keras.metrics.Metric]
    compute: Callable[..., Any]
    result: Callable[[], dict[str, Any]]
    updates: Callable[..., Any]

    def update(
        self,
        batch: tuple[Any, Any, Any],
        mask: tf.Tensor | None,
        losses: ExampleLosses,
        outputs: Any,
        *,
        must_compile: bool = False,
    ) -> None:
        """Updates the metrics with the examples of a physical batch.

        The mask, `[batch]`, is False for padding, which can be in any row. A
        batch of padding alone changes nothing. Padding has the weight 0 where
        all metrics heed weights, so that XLA can compile them; else it is cut
        off, or refused if they must compile. The losses are those of each
        example, with the weight penalties.
        """
        if mask is None:
            self._update(batch, losses, outputs)
            return
        each = self.weighted(batch, outputs)
        if each is not None:
            self._update_weighted(each, mask, losses)
            return
        if must_compile:
            raise MetricsNotCompiledError
        kept = _without_padding((batch, losses, outputs), mask)
        # An empty sample has no metrics, and some would divide by zero.
        tf.cond(
            tf.reduce_any(mask),
            lambda: _then_true(lambda: self._update(*kept)),
            lambda: tf.constant(True),
        )

    def weighted(
        self, batch: tuple[Any, Any, Any], outputs: Any
    ) -> list[tuple[Any, Any, Any, Any]] | None:
        """Returns the metrics with what updates them, if all heed weights.

        See `keras_internals.metric_updates`. The result is `None` if one does
        not, or if an output has a mask of its own.
        """
        _, y, weight = batch
        if any(mask is not None for mask in masks_of(outputs)):
            return None
        found: list[tuple[Any, Any, Any, Any]] | None = self.updates(
            y, outputs, weight
        )
        if found is None or not all(
            weighs_rows(metric, target, output)
            for metric, target, output, _ in found
        ):
            return None
        return found

    def _update_weighted(
        self,
        each: list[tuple[Any, Any, Any, Any]],
        mask: tf.Tensor,
        losses: ExampleLosses,
    ) -> None:
        present = tf.cast(mask, keras.config.floatx())

        def kept(leaf: tf.Tensor) -> tf.Tensor:
            # A model may not be finite on padding.
            rows = tf.reshape(mask, [-1] + [1] * (leaf.shape.rank - 1))
            return tf.where(rows, leaf, tf.zeros([], leaf.dtype))

        trackers = [self.loss_tracker, *self.loss_metrics]
        parts = [losses.total, *losses.parts]
        for tracker, part in zip(trackers, parts, strict=True):
            tracker.update_state(kept(part), sample_weight=present)
        for metric, y, output, weight in each:
            own = present if weight is None else kept(weight)
            metric.update_state(y, kept(output), sample_weight=own)

    def _update(
        self, batch: tuple[Any, Any, Any], losses: ExampleLosses, outputs: Any
    ) -> None:
        x, y, weight = batch
        self.loss_tracker.update_state(losses.total)
        for tracker, part in zip(self.loss_metrics, losses.parts, strict=True):
            tracker.update_state(part)
        self.compute(x, y, outputs, sample_weight=weight)


def with_penalties(model: keras.Model, losses: ExampleLosses) -> ExampleLosses:
    """Returns losses with the sum of weight penalties added to each total."""
    penalties = penalties_of(model)
    if not penalties:
        return losses
    penalty = tf.cast(tf.add_n(penalties), losses.total.dtype)
    return losses._replace(total=losses.total + penalty)


def masks_of(outputs: Any) -> list[tf.Tensor | None]:
    """Returns the Keras mask of each output."""
    return [mask_of(leaf) for leaf in keras.tree.flatten(outputs)]


def set_masks(outputs: Any, masks: list[tf.Tensor | None]) -> None:
    """Puts masks back on outputs: a compiled function drops them."""
    for leaf, mask in zip(keras.tree.flatten(outputs), masks, strict=True):
        if mask is not None:
            set_mask(leaf, mask)


def _then_true(act: Callable[[], None]) -> tf.Tensor:
    act()
    return tf.constant(True)


def _without_padding(nest: Any, mask: tf.Tensor) -> Any:
    def rows(leaf: Any) -> Any:
        if leaf is None:
            return None
        kept = tf.boolean_mask(leaf, mask)
        keras_mask = mask_of(leaf)
        if keras_mask is not None:
            set_mask(kept, tf.boolean_mask(keras_mask, mask))
        return kept

    return keras.tree.map_structure(rows, nest)
