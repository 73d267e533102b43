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
from keras_dp.optimizers.round_queries import Grouping, asked_of
from keras_dp.training.data_adapter import PhysicalStep, example_batch
from keras_dp.training.devices.replicas import Replicas, alone, summed
from keras_dp.training.example_metrics import (
    masks_of,
    set_masks,
    update_metrics,
    with_penalties,
)
from keras_dp.training.preconditions import check_created_in
from keras_dp.training.sample_sums import SampleSums


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
        self._replicas = Replicas(private.distribute_strategy)
        self._loss_scale = private.loss_scale
        if self._replicas.are_many:
            templates = self._optimizer.templates(
                self._engine.variables, self._beside_templates()
            )
            self._optimizer.asked.check_sums(templates)
            check_created_in(
                self._replicas.strategy, self._optimizer.state_variables
            )
        self._inner = self._optimizer.inner
        self._learning_rate = self._inner._learning_rate
        self._sums: Any = None
        self._traces: dict[Any, Callable[..., Any]] = {}
        self._functions: dict[Any, Any] = {}

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
            or self._optimizer.inner is not self._inner
            or self._inner._learning_rate is not self._learning_rate
            or [id(v) for v in private.model.trainable_variables] != trained
            or [id(v) for v in self._optimizer._trainable_variables] != trained
            or self._normalized() != [id(x) for x in engine.normalized]
        ):
            raise PrivateTrainingError(
                "The optimizer, its schedule, the model and what is trainable "
                "must be those that were compiled. Call compile() again, with "
                "a new optimizer if other variables are trained."
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
            set_masks(outputs, masks)
            loss = self._private._compile_loss
            losses = self._losses(y, outputs, None, rows)
            with alone():
                return losses, batch_losses(loss, y, outputs)

        def losses_of(outputs: Any) -> tf.Tensor:
            masks = masks_of(outputs)
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
            sample goes on, or is released by `release`.
        """
        last = step.ends_sample and not self.releases_apart
        if not last and self._sums is None:
            self._sums = SampleSums(
                self._empty_sample(), self._replicas.strategy
            )
        parts: tuple[Any, ...] = (*step.data, step.mask)
        if self._replicas.are_many:
            rows = 1 if grouping is None else grouping.rows
            parts = self._replicas.parts(step, rows)
        return self._traced((first, last, grouping), parts)(*parts)

    def release(self) -> tuple[Any, Any]:
        """Releases the sample, with all workers, and returns as `run` does."""
        key = "release"
        if key not in self._functions:
            self._functions[key] = self._compiled(self._release_step)
        return self._functions[key]()

    @property
    def releases_apart(self) -> bool:
        """Whether `release` must be called at the end of each sample.

        Workers draw samples of their own, which may take one more batches
        than the other: what they do together must not be part of a batch.
        """
        return self._replicas.workers > 1

    @property
    def trace_count(self) -> int:
        """How often a function was traced, over all kinds of batches."""
        functions = self._functions.values()
        return sum(f.experimental_get_tracing_count() for f in functions)

    def _traced(
        self, key: tuple[bool, bool, Grouping | None], parts: tuple[Any, ...]
    ) -> Callable[..., Any]:
        """Returns the step for batches of the shapes of this one."""
        function = self._function(*key)
        if self._replicas.are_many or self._private.run_eagerly:
            return function
        # Half of what a step costs beside its computation is TensorFlow's
        # search for the trace.
        shapes = tuple(
            None if leaf is None else (tuple(leaf.shape), leaf.dtype)
            for leaf in keras.tree.flatten(parts)
        )
        nest = str(keras.tree.map_structure(lambda leaf: leaf is None, parts))
        full_key = (key, nest, shapes)
        if full_key not in self._traces:
            trace = function.get_concrete_function(*parts)
            self._traces[full_key] = trace
        return self._traces[full_key]

    def _empty_sample(self) -> Any:
        return self._optimizer.initial_sample(
            self._engine.variables, self._beside_templates()
        )

    def _beside_templates(self) -> dict[str, Any]:
        return self._beside.templates(self._engine.normalized)

    def _function(
        self, first: bool, last: bool, grouping: Grouping | None
    ) -> Any:
        key = (first, last, grouping)
        if key in self._functions:
            return self._functions[key]

        def core(x: Any, y: Any, weight: Any, mask: Any) -> Any:
            return self._core(x, y, weight, mask, first, last, grouping)

        if self._jit_compile:
            core = tf.function(core, jit_compile=True, autograph=False)

        def step(x: Any, y: Any, weight: Any, mask: Any) -> Any:
            losses, outputs, masks, released = core(x, y, weight, mask)
            if self._beside.metrics is None:
                set_masks(outputs, masks)
                batch = (x, y, weight)
                update_metrics(self._private, batch, mask, losses, outputs)
            elif last:
                self._beside.track(released[1])
            return released if last else ()

        self._functions[key] = self._compiled(step)
        return self._functions[key]

    def _release_step(self) -> Any:
        """A release on its own, of what every replica has summed up."""
        event, values = self._released(self._sums.read())
        if self._beside.metrics is not None:
            self._beside.track(values)
        return event, values

    def _compiled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a step on all replicas, with the metrics and the event."""

        def whole(*parts: Any) -> Any:
            if self._replicas.are_many:
                released = self._replicas.run(step, parts)
            else:
                released = step(*parts)
            event = released[0] if released else None
            if event is None and self._replicas.workers > 1:
                return {}, None  # Metrics are summed over workers.
            return self._logs(), event

        if self._private.run_eagerly:
            return whole
        return tf.function(whole, autograph=False)  # As Keras's own.

    def _logs(self) -> dict[str, Any]:
        """Returns the metrics so far, of all replicas together."""
        public = self._optimizer.public_metrics()
        if self._beside.metrics is not None:
            return {**self._beside.logs(), **public}
        return {**self._private.get_metrics_result(), **public}

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

        result = self._engine.gradients(
            x, losses_of, batch, loss_scale=self._loss_scale
        )
        variables = self._engine.variables
        sample = self._empty_sample() if first else self._sums.read()
        with without_stores(self._engine.model):
            beside = self._beside.asked(
                y, result.outputs, result.losses, result.statistics, mask
            )
        gradients = asked_of(result.records, mask, batch, grouping)
        with self._engine.computing():
            sample = self._optimizer.accumulate(
                sample, variables, gradients, beside
            )
        # Of the weights that the losses are of, not of the updated ones.
        losses = with_penalties(self._private.model, held[0])
        released = None
        if last:
            released = self._released(sample)
        else:
            self._sums.assign(sample)
        masks = masks_of(result.outputs)
        return losses, result.outputs, masks, released

    def _released(self, sample: Any) -> tuple[Any, Any]:
        """Noises and applies the sums; returns the event and the metrics."""
        if self._replicas.are_many:
            sample = summed(sample)
        variables = self._engine.variables
        event, answers = self._optimizer.release(
            sample, variables, self._penalties(variables)
        )
        return event, self._beside.apply(answers, self._engine.normalized)

    def _losses(
        self, y: Any, outputs: Any, weight: Any, batch: int
    ) -> ExampleLosses:
        with alone():
            return example_losses(
                self._private._compile_loss,
                y,
                outputs,
                weight,
                batch,
                loss_scale=self._loss_scale,
            )

    def _penalties(self, variables: list[Any]) -> list[tf.Tensor | None]:
        """Gradients of the weight penalties, which depend on no data."""
        with tf.GradientTape() as tape:
            losses = self._private.model._get_regularization_losses()
            total = tf.add_n(losses) if losses else None
        if total is None:
            return [None] * len(variables)
        return tape.gradient(total, [v.value for v in variables])
