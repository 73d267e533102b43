"""One physical batch as one compiled function.

Forward, backward and clip; at the end of a sample, noise and update.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients import (
    ExampleLosses,
    GradientEngine,
    batch_losses,
    check_loss_splits,
    example_losses,
    self_check,
    trained_normalizations,
    without_stores,
)
from keras_dp.optimizers.feed import Grouping, PhysicalStep, example_batch
from keras_dp.optimizers.round_queries import Asked


class TrainingStep:
    """The compiled steps of one private model, made for one `compile`.

    A sample that spans several physical batches is summed up in variables; one
    that fits into a single batch, the ordinary case, needs none.
    """

    def __init__(self, private: Any) -> None:
        """Finds the model's taps, or refuses it.

        Args:
            private: The `PrivateModel`, built and compiled.
        """
        self._private = private
        self._optimizer = private.optimizer
        self._jit_compile = bool(private.jit_compile)
        self._beside = private.beside
        self._engine = GradientEngine(
            private.model,
            jit_compile=self._jit_compile,
            releases_statistics=self._beside.statistics is not None,
        )
        if self._beside.statistics is not None and not self._engine.normalized:
            raise ValueError(
                "`batch_statistics` must be None for a model without "
                "BatchNormalization that is trained. Received: "
                f"batch_statistics={self._beside.statistics!r}."
            )
        self._beside.check_names(self._optimizer.public_metrics())
        self._checked: set[int] = set()
        self._partial: list[tf.Variable] = []
        self._functions: dict[Any, Callable[..., Any]] = {}

    def check_unchanged(self) -> None:
        """Raises if the model is not what the step was made for.

        Raises:
            PrivateTrainingError: Its optimizer or model was exchanged, or
                other variables are to be trained.
            UnsupportedLayerError: It has a layer that is refused by now.
        """
        private, engine = self._private, self._engine
        trained = [id(v) for v in engine.variables]
        if (
            private.optimizer is not self._optimizer
            or private.model is not engine.model
            or [id(v) for v in private.model.trainable_variables] != trained
            or [id(v) for v in self._optimizer._trainable_variables] != trained
            or self._normalized() != [id(x) for x in engine.normalized]
        ):
            raise PrivateTrainingError(
                "The optimizer, the model and what is trainable must be those "
                "that were compiled. Call compile() again, with a new "
                "optimizer if other variables are trained."
            )
        engine.check_layers()

    def _normalized(self) -> list[int]:
        if self._beside.statistics is None:
            return []
        layers = trained_normalizations(self._engine.model)
        return [id(layer) for layer in layers]

    def check(self, step: PhysicalStep) -> None:
        """Checks the engine on the first batch of each size that tells."""
        batch = keras.tree.flatten(step.x)[0].shape[0]
        examples = self._private.self_check_examples
        if not examples or batch in self._checked:
            return
        x, y, tells = example_batch(step, examples)
        rows = max(2, batch)

        # One function for all passes: vectorizing is traced once.
        @tf.function(autograph=False)
        def both_losses(outputs: Any, masks: Any) -> Any:
            _set_masks(outputs, masks)
            loss = self._private._compile_loss
            losses = self._losses(y, outputs, None, rows)
            return losses, batch_losses(loss, y, outputs)

        def losses_of(outputs: Any) -> tf.Tensor:
            masks = _masks(outputs)
            losses, wholes = both_losses(outputs, masks)
            has_masks = any(mask is not None for mask in masks)
            for part, whole in zip(
                losses.parts or [losses.total], wholes, strict=True
            ):
                check_loss_splits(part, whole, has_masks=has_masks)
            return losses.total

        finite = self_check(self._engine, x, losses_of, rows, examples=examples)
        if finite and tells:
            self._checked.add(batch)

    def run(
        self, step: PhysicalStep, *, first: bool, grouping: Grouping | None
    ) -> tuple[Any, Any]:
        """Runs one physical batch.

        Args:
            step: The batch.
            first: Whether it is the first of its sample.
            grouping: How examples make microbatches, if they do.

        Returns:
            The metrics so far, and the event of the release, `None` if the
            sample goes on.
        """
        if not step.ends_sample and not self._partial:
            self._partial = [
                tf.Variable(leaf, trainable=False)
                for leaf in tf.nest.flatten(self._empty_sample())
            ]
        key = (first, step.ends_sample, grouping)
        if key not in self._functions:
            self._functions[key] = self._compiled(*key)
        return self._functions[key](
            step.x, step.y, step.sample_weight, step.mask
        )

    def _empty_sample(self) -> Any:
        return self._optimizer.initial_sample(
            self._engine.variables,
            self._beside.templates(self._engine.normalized),
        )

    def _compiled(
        self, first: bool, last: bool, grouping: Grouping | None
    ) -> Callable[..., Any]:
        def core(x: Any, y: Any, weight: Any, mask: Any) -> Any:
            return self._core(x, y, weight, mask, first, last, grouping)

        if self._jit_compile:
            core = tf.function(core, jit_compile=True, autograph=False)

        def step(x: Any, y: Any, weight: Any, mask: Any) -> Any:
            losses, outputs, masks, event, public, values = core(
                x, y, weight, mask
            )
            if self._beside.metrics is not None:
                self._beside.track(values)
                return {**self._beside.logs(), **public}, event
            _set_masks(outputs, masks)
            self._update_metrics(x, y, weight, mask, losses, outputs)
            return {**self._private.get_metrics_result(), **public}, event

        if self._private.run_eagerly:
            return step
        return tf.function(step, autograph=False)  # As Keras's own.

    def _core(
        self,
        x: Any,
        y: Any,
        weight: Any,
        mask: Any,
        first: bool,
        last: bool,
        grouping: Grouping | None,
    ) -> Any:
        """All that touches gradients, and all that XLA compiles."""
        batch = keras.tree.flatten(x)[0].shape[0]
        held: list[ExampleLosses] = []

        def losses_of(outputs: Any) -> tf.Tensor:
            held.append(self._losses(y, outputs, weight, batch))
            return held[0].total

        result = self._engine.gradients(x, losses_of, batch)
        variables = self._engine.variables
        sample = self._empty_sample()
        if not first:
            sample = tf.nest.pack_sequence_as(
                sample, [tf.convert_to_tensor(v) for v in self._partial]
            )
        with without_stores(self._engine.model):
            beside = self._beside.asked(
                y, result.outputs, result.losses, result.statistics, mask
            )
        gradients = _grouped(result.records, mask, batch, grouping)
        sample = self._optimizer.accumulate(
            sample, variables, gradients, beside
        )
        event, values = None, {}
        if last:
            event, answers = self._optimizer.release(
                sample, variables, self._penalties(variables)
            )
            values = self._beside.apply(answers, self._engine.normalized)
        else:
            leaves = tf.nest.flatten(sample)
            for variable, leaf in zip(self._partial, leaves, strict=True):
                variable.assign(leaf)
        public = self._optimizer.public_metrics()
        masks = _masks(result.outputs)
        return held[0], result.outputs, masks, event, public, values

    def _losses(
        self, y: Any, outputs: Any, weight: Any, batch: int
    ) -> ExampleLosses:
        return example_losses(
            self._private._compile_loss, y, outputs, weight, batch
        )

    def _penalties(self, variables: list[Any]) -> list[tf.Tensor | None]:
        """Gradients of the weight penalties, which depend on no data."""
        with tf.GradientTape() as tape:
            losses = self._private.model._get_regularization_losses()
            total = tf.add_n(losses) if losses else None
        if total is None:
            return [None] * len(variables)
        return tape.gradient(total, [v.value for v in variables])

    def _update_metrics(
        self,
        x: Any,
        y: Any,
        weight: Any,
        mask: Any,
        losses: ExampleLosses,
        outputs: Any,
    ) -> None:
        """Updates Keras's metrics with the examples, without the padding."""

        def update(y: Any, outputs: Any, weight: Any, losses: Any) -> None:
            private = self._private
            penalties = private.model._get_regularization_losses()
            private._loss_tracker.update_state(
                losses.total + tf.add_n(penalties)
                if penalties
                else losses.total
            )
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


def _grouped(
    records: list[Any],
    mask: tf.Tensor | None,
    batch: int,
    grouping: Grouping | None,
) -> Asked:
    """Returns what the query of the gradients is asked: examples, or groups."""
    if grouping is None:
        return Asked(records, mask)
    weights = tf.ones([batch]) if mask is None else tf.cast(mask, tf.float32)
    weights /= grouping.size
    groups = [each.grouped(grouping.rows, weights) for each in records]
    # A group of padding alone is no record, not one of norm 0.
    rows = tf.reshape(weights > 0, [batch // grouping.rows, grouping.rows])
    return Asked(groups, tf.reduce_any(rows, axis=1))


def _then_true(act: Callable[[], None]) -> tf.Tensor:
    act()
    return tf.constant(True)


def _masks(outputs: Any) -> list[tf.Tensor | None]:
    """Returns the Keras mask of each output."""
    return [
        getattr(leaf, "_keras_mask", None)
        for leaf in keras.tree.flatten(outputs)
    ]


def _set_masks(outputs: Any, masks: list[tf.Tensor | None]) -> None:
    """Puts masks back, which do not survive a compiled function."""
    for leaf, mask in zip(keras.tree.flatten(outputs), masks, strict=True):
        if mask is not None:
            leaf._keras_mask = mask


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
