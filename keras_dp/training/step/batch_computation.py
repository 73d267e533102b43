"""Computes on one physical batch: forward, backward, clip, noise.

Noise is added at the end of the sample. A batch changes the seeds of layers and
the sums of a sample that spans several batches. A release changes the state of
the optimizer, the trained weights and, if they are released, the statistics of
batch normalization.
"""

from typing import Any, NamedTuple, TypeAlias

import keras
import tensorflow as tf

from keras_dp.gradients import (
    ExampleLosses,
    GradientEngine,
    TracedGradients,
    TracedMaps,
    example_losses,
    without_variable_writes,
)
from keras_dp.keras_internals import counting_one_replica, penalties_of
from keras_dp.optimizers.answer_sizes import AnswerSizes
from keras_dp.optimizers.private_round import (
    GRADIENTS,
    Event,
    RecordBatch,
    Released,
    Sample,
    State,
)
from keras_dp.sampling.draw import RowsOfRecord
from keras_dp.training.devices.replicas import summed
from keras_dp.training.metrics.example_metrics import masks_of, with_penalties
from keras_dp.training.step.sample_release import Release, SampleSums
from keras_dp.training.step.step_parts import StepParts


class BatchResult(NamedTuple):
    """The result of a physical batch, for metrics and the ledger.

    The losses are by the weights from before the release, with the weight
    penalties. `released` is the event and the private metrics; `None` for a
    part of a sample.
    """

    losses: ExampleLosses
    outputs: Any
    masks: list[tf.Tensor | None]
    released: tuple[Event, dict[str, tf.Tensor]] | None


# The losses of examples, the outputs of the model, and the records by query.
_Computed: TypeAlias = tuple[ExampleLosses, Any, dict[str, RecordBatch]]


class BatchComputation:
    """Computes on the physical batches of one compiled private model.

    `gradients` traces the engine once for each form of batch. `release` answers
    a sample: the round, its trace, or answers that are given. `sizes` tells how
    large answers and their noise were; it is `None` if the noise has no known
    variance.
    """

    def __init__(self, parts: StepParts) -> None:
        """Finds the layers of the model, or refuses it."""
        self._parts = parts
        self._round = parts.round
        self._sums: SampleSums | None = None
        self.release: Release = self._release
        # A trace holds variables, and each replica has its own.
        many = parts.replicas.are_many
        self._loss_maps = None if many else TracedMaps()
        statistics = parts.side_queries.statistics
        self.engine = GradientEngine(
            parts.model,
            jit_compile=parts.jit_compile,
            releases_statistics=statistics is not None,
        )
        self.gradients = TracedGradients(
            self.engine,
            self.losses,
            traces=not many,
        )
        self.sizes = AnswerSizes.of(
            parts.optimizer,
            self.engine.variables,
            parts.replicas.strategy,
        )
        self._updates = None
        if parts.user_updates is not None:
            self._updates = parts.user_updates(
                self.engine, parts.loss, parts.loss_scale
            )
        if statistics is not None and not self.engine.normalized:
            raise ValueError(
                "`batch_statistics` must be None for a model in which no "
                "BatchNormalization layer is trained. Received: "
                f"batch_statistics={statistics!r}. Compile without it."
            )

    @property
    def templates(self) -> dict[str, Any]:
        """The template of a record of each query."""
        return self._round.templates(
            self.engine.variables,
            self._parts.side_queries.templates(self.engine.normalized),
        )

    def make_sums(self) -> None:
        """Creates the sums of samples that span several batches, once."""
        if self._sums is None:
            self._sums = SampleSums(
                self._round.initial_sample(self.templates),
                self._parts.replicas.strategy,
            )

    def of_sample(
        self,
        data: tuple[Any, Any, Any],
        mask: tf.Tensor | None,
        rows: RowsOfRecord,
        planned: Event,
    ) -> BatchResult:
        """Releases a sample that is one physical batch.

        `mask`, `[batch]`, is false for padding, which can be in any row; it is
        `None` if there is no padding. The ledger covers the event `planned`. A
        release with any other event is withheld.
        """
        empty = self._round.initial_sample(self.templates)
        state = self._parts.optimizer.read_state()
        result, sample = self.accumulated(data, mask, rows, state, empty)
        return result._replace(released=self.released(sample, planned))

    def of_part(
        self,
        data: tuple[Any, Any, Any],
        mask: tf.Tensor | None,
        rows: RowsOfRecord,
        is_first: tf.Tensor,
    ) -> BatchResult:
        """Adds a physical batch to its sample, which `of_sums` releases."""
        before = tf.cond(
            is_first,
            lambda: self._round.initial_sample(self.templates),
            self._made_sums.read,
        )
        state = self._parts.optimizer.read_state()
        result, sample = self.accumulated(data, mask, rows, state, before)
        self._made_sums.assign(sample)
        return result

    def accumulated(
        self,
        data: tuple[Any, Any, Any],
        mask: tf.Tensor | None,
        rows: RowsOfRecord,
        state: State,
        sample: Sample,
    ) -> tuple[BatchResult, Sample]:
        """Returns the result of a batch, and the sample with its records."""
        of = self._of_examples if self._updates is None else self._of_users
        losses, outputs, batches = of(data, mask, rows)
        with self.engine.computing():
            sample = self._round.accumulate(
                state, sample, self.engine.variables, batches
            )
        # Both the losses and the penalties are by the old weights.
        losses = with_penalties(self._parts.model, losses)
        return BatchResult(losses, outputs, masks_of(outputs), None), sample

    def _of_examples(
        self, data: Any, mask: tf.Tensor | None, rows: RowsOfRecord
    ) -> _Computed:
        x, y, weight = data
        batch = keras.tree.flatten(x)[0].shape[0]
        scale = self._parts.loss_scale
        result, losses = self.gradients.of(x, y, weight, scale)
        gradients = record_batch(result.records, mask, batch, rows)
        with without_variable_writes(self.engine.model):
            batches = self._parts.side_queries.batches(
                y,
                result.outputs,
                result.losses,
                result.records if rows.views == 1 else gradients.records,
                result.statistics,
                mask,
                rows.views,
            )
        batches[GRADIENTS] = gradients
        return losses, result.outputs, batches

    def _of_users(
        self, data: Any, mask: tf.Tensor | None, rows: RowsOfRecord
    ) -> _Computed:
        """Returns the change that the training of each user makes."""
        if self._updates is None or mask is None or not rows.averages:
            raise RuntimeError(
                "The samples of users must be drawn by UserBatches. Pass such "
                "a sampler to fit."
            )
        x, y, weight = data
        with without_variable_writes(self.engine.model):
            outputs = self.engine.call(x)
            losses = self.losses(y, outputs, weight, mask.shape[0])
        records = self._updates.records(data, mask, rows.rows)
        present = tf.reduce_any(tf.reshape(mask, [-1, rows.rows]), axis=1)
        return losses, outputs, {GRADIENTS: RecordBatch(records, present)}

    def of_sums(self, planned: Event) -> tuple[Event, dict[str, tf.Tensor]]:
        """Releases the sums of all replicas."""
        return self.released(self._made_sums.read(), planned)

    @property
    def _made_sums(self) -> SampleSums:
        if self._sums is None:
            raise RuntimeError("`make_sums` must be called first.")
        return self._sums

    def released(
        self,
        sample: Sample,
        planned: Event,
    ) -> tuple[Event, dict[str, tf.Tensor]]:
        """Noises and applies the sums.

        Returns the event, and the private metrics of this round by name.
        """
        if self._parts.replicas.are_many:
            sample = summed(sample)
        variables = self.engine.variables
        before = self._parts.optimizer.read_state()
        event, answers = self._parts.optimizer.release(
            sample,
            variables,
            self._penalties(variables),
            planned,
            self.release,
        )
        if self.sizes is not None:
            self.sizes.add(before, answers)
        values = self._parts.side_queries.apply(answers, self.engine.normalized)
        return event, values

    def _release(
        self, sample: Sample, state: State, planned: Event
    ) -> Released:
        return self._round.release(
            sample, state, self.engine.variables, planned
        )

    def losses(
        self, y: Any, outputs: Any, weight: Any, batch: int
    ) -> ExampleLosses:
        """Returns the losses of each example as a batch of one."""
        with counting_one_replica():
            return example_losses(
                self._parts.loss,
                y,
                outputs,
                weight,
                batch,
                loss_scale=self._parts.loss_scale,
                maps=self._loss_maps,
            )

    def _penalties(self, variables: list[Any]) -> list[tf.Tensor | None]:
        """Returns the gradients of weight penalties. They hold no data."""
        with tf.GradientTape() as tape:
            losses = penalties_of(self._parts.model)
            total = tf.add_n(losses) if losses else None
        if total is None:
            return [None] * len(variables)
        return tape.gradient(total, [v.value for v in variables])


def record_batch(
    gradients: list[Any],
    mask: tf.Tensor | None,
    batch: int,
    rows: RowsOfRecord,
) -> RecordBatch:
    """Returns the gradients of rows, or of groups of them."""
    if rows.are_apart:
        return RecordBatch(gradients, mask)
    shape = [batch // rows.rows, rows.rows]
    weights = tf.ones([batch]) if mask is None else tf.cast(mask, tf.float32)
    weights /= rows.size
    if rows.averages:
        counts = tf.reduce_sum(tf.reshape(weights, shape), 1, keepdims=True)
        counts = tf.reshape(tf.broadcast_to(counts, shape), [batch])
        weights = tf.math.divide_no_nan(weights, counts)
    groups = [each.grouped(rows.rows, weights) for each in gradients]
    # A group of padding alone is masked. It is not a record of norm 0.
    present = tf.reduce_any(tf.reshape(weights > 0, shape), axis=1)
    return RecordBatch(groups, present)
