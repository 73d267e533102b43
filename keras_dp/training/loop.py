"""Runs rounds. The ledger covers each round before it is computed."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from keras_dp.errors import BudgetExceededError
from keras_dp.keras_internals import counting_one_replica
from keras_dp.ledger import (
    Round,
    SamplingEvent,
    SumQueryEvent,
    UnverifiedSampling,
)
from keras_dp.optimizers.private_round import Event
from keras_dp.spending.recording import (
    LARGEST_BLOCK,
    RoundRecorder,
    UnrecordedRounds,
    recording_with,
)
from keras_dp.spending.run import TrainingRun
from keras_dp.training.advice.condition import judge
from keras_dp.training.advice.of_trainings import (
    EPOCHS,
    FIRST_BATCH,
    RESTORED,
    FirstBatch,
)
from keras_dp.training.advice.other_trainings import ReleasedWeights
from keras_dp.training.data.data_adapter import PhysicalStep
from keras_dp.training.data.first_batch import check_batch
from keras_dp.training.data.in_range import check_in_range
from keras_dp.training.devices.workers import (
    FitTerms,
    check_agreement,
    refusal_of,
)
from keras_dp.training.preparation import Preparation
from keras_dp.training.step.batch_computation import BatchKind
from keras_dp.training.step.layer_states import LayerSeeds, renew_adapters
from keras_dp.training.step.training_step import TrainingStep

# Returns the compiled steps for batches of this form. It raises if the model or
# the optimizer was changed since they were compiled.
BuiltStep = Callable[[PhysicalStep], TrainingStep]


class TrainingLoop:
    """The rounds of one call of `fit` or `train_on_batch`.

    Attributes:
        ready: The terms of the training.
        ledger_run: The run of the ledger; `None` if another worker records.
        recorder: Reserves the rounds of the loop in the ledger and settles
            them.
        logs: The metrics after the last round, empty before the first.
    """

    def __init__(
        self,
        ready: Preparation,
        terms: FitTerms,
        run: TrainingRun | None,
        built_step: BuiltStep,
        *,
        stop: Callable[[], None] = lambda: None,
        weights: ReleasedWeights | None = None,
        try_out: Callable[[], None] | None = None,
        ends_run: bool = True,
    ) -> None:
        """Starts with nothing recorded.

        Args:
            ready: The terms of the training.
            terms: The arguments that all workers must agree on.
            run: The run of the ledger; `None` if another worker records.
            built_step: Returns the compiled steps for a batch.
            stop: Is called after the last round that there is room for.
            weights: Remembers the weights after a release.
            try_out: Is called once the first round is traced, before the ledger
                holds anything. An error that it raises costs no privacy.
            ends_run: Whether the run ends with the loop.

        Raises:
            PrivateTrainingError: The optimizer has no ledger.
        """
        self.ready, self.ledger_run = ready, run
        self._terms, self._built_step = terms, built_step
        self._stop, self._ends_run = stop, ends_run
        self._try_out, self._weights = try_out, weights
        self._adapter, self._optimizer = ready.adapter, ready.optimizer
        self._replicas = ready.replicas
        self._seeds = LayerSeeds(ready.model, ready.optimizer.seed)
        self.logs: Mapping[str, Any] = {}
        self._rounds_run = 0
        self._left_of_epoch: int | None = None
        self._until_settled = LARGEST_BLOCK  # Rounds, at the end of the epoch.
        self._is_begun = False
        self._own: Iterator[Any] | None = None
        self._planned: Event | None = None
        self._sampling: SamplingEvent = UnverifiedSampling()
        self._left = LARGEST_BLOCK
        self._refusal = refusal_of(ready.ledger, ready.adapter, ready.replicas)
        self.recorder: RoundRecorder[Event] | UnrecordedRounds
        self.recorder = UnrecordedRounds()
        if run is not None and self._refusal is None:
            self.recorder = RoundRecorder(
                run,
                plan=self._planned_round,
                events_of=self._events_of,
                adapts=lambda: self._optimizer.round.adapts,
                left=lambda: min(self._left, self._until_settled),
            )

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Marks the optimizer as busy, and ends the run at the end.

        Raises:
            PrivateTrainingError: The optimizer is training already, or a round
                released something else than the ledger covers.
        """
        with recording_with(
            self._optimizer, self.recorder, ends_run=self._ends_run
        ):
            try:
                yield
            finally:
                self._adapter.close()
                # A model that is saved now does not hold the seeds of rounds.
                self.renew_seeds()

    def begin_epoch(self, epoch: int) -> None:
        """Draws new seeds, and counts the rounds to come.

        Args:
            epoch: The number of the epoch. A callback may have restored it, so
                that fewer epochs are left.
        """
        if not self._rounds_run:
            self._terms = self._terms.from_epoch(epoch)
            if self.ledger_run is not None:
                self.ledger_run.expect(self._terms.rounds)
        self._left_of_epoch = self._terms.options.get("steps_per_epoch")
        self.renew_seeds()

    def end_epoch(self) -> None:
        """Settles the ledger and draws new seeds, before callbacks save."""
        self.recorder.settle()
        if self._weights is not None:
            self._weights.note()
        self.renew_seeds()
        judge(EPOCHS, self.logs, said=self.ready.said)

    def renew_seeds(self) -> None:
        """Draws new seeds of layers: a checkpoint may hold the old ones."""
        self._seeds.renew(self._optimizer.rounds_released)

    def _plan(self) -> Event:
        """Returns the event of the next release.

        If events do not follow from earlier answers, this is the event of the
        first round. A release whose state was changed since is then withheld.
        """
        if self._planned is None:
            self._planned = self._optimizer.plan()
        return self._planned

    def _planned_round(self) -> Round:
        return self._optimizer.planned_round(
            self._plan(),
            self._sampling,
            seeded=self._adapter.seeded,
            gradient_bound_factor=self._bound_factor,
        )

    def _events_of(self, event: Event) -> tuple[SumQueryEvent, ...]:
        return self._optimizer.round.ledger_events(event, self._bound_factor)

    @property
    def _bound_factor(self) -> int:
        grouping = self._adapter.grouping
        return 1 if grouping is None else grouping.bound_factor

    def run(self, iterator: Iterator[Any], rounds: int) -> int:
        """Runs up to `rounds` rounds, and returns how many.

        Training ends after the last round that the target and the account leave
        room for, also if another process took the room for the next one.

        Raises:
            BudgetExceededError: There is no room for the first round of the
                loop.
            StopIteration: The data ended before the first of these rounds.
            ValueError: A batch has no targets, its parts have different
                lengths, or its labels or ids are out of range.
        """
        if self._adapter.is_sampler and self._replicas.are_many:
            # Keras would also cut the flags of a batch into parts.
            if self._own is None:
                self._own = iter(self._adapter.dataset())
            iterator = self._own
        before = self._rounds_run
        if self._left_of_epoch is not None:
            # `steps_per_execution` need not divide the rounds of an epoch.
            rounds = min(rounds, self._left_of_epoch)
            self._left_of_epoch -= rounds
        try:
            for done in range(rounds):
                if self._left_of_epoch is not None:
                    self._until_settled = self._left_of_epoch + rounds - done
                self.logs = self._run_round(iterator)
                if self.recorder.is_exhausted:
                    break
        except BudgetExceededError:
            if not self.recorder.ran_out or not self._rounds_run:
                raise
        except StopIteration:
            if self._rounds_run == before:
                raise
        except tf.errors.InvalidArgumentError as error:
            check_in_range(error)
            raise
        if self.recorder.is_exhausted:
            self._stop()
            if self._rounds_run != self._terms.rounds:
                logging.warning(
                    "Training ends after %d rounds: one more would exceed the "
                    "target epsilon, the account, or the plan of the run.",
                    self._rounds_run,
                )
        return self._rounds_run - before

    def _run_round(self, iterator: Iterator[Any]) -> Mapping[str, Any]:
        """Runs one sample to its release."""
        batch = self._next_batch(iterator)
        self._turn_to(batch.sampling)
        if batch.rounds_left is not None:
            self._left = batch.rounds_left + 1
        step = self._checked_step(batch)
        if self._optimizer.round.adapts:
            self._planned = None
        planned = self._plan()
        grouping = self._adapter.grouping
        is_whole = batch.ends_sample and not step.releases_apart
        kind = BatchKind(is_whole, grouping)
        step.prepare(batch, kind, planned)
        if self._try_out is not None:
            self._try_out()
            self._try_out = None
        # Looked at about once a second: to compare takes as long as to copy.
        if self._weights is not None and self.recorder.is_between_blocks:
            self._weights.check(self.ready.said)
        self.recorder.cover()
        logs, event = step.run(batch, kind, planned)
        while not batch.ends_sample:
            batch = self._next_batch(iterator)
            part = BatchKind(is_whole=False, grouping=grouping)
            step.run(batch, part, planned, is_first=False)
        if not is_whole:
            # The release waits for the chief, which has covered the round.
            logs, event = step.release(planned)
        if event is None:
            raise RuntimeError("A sample must end with a release.")
        self.recorder.released(event)
        self._rounds_run += 1
        if self._weights is not None:
            if self.recorder.is_between_blocks:
                self._weights.note()
            else:
                self._weights.forget()
        self._turn_to(batch.next_sampling)
        return logs

    def _turn_to(self, sampling: SamplingEvent) -> None:
        """Settles the reserved rounds if a new pass begins."""
        if sampling != self._sampling:
            self.recorder.settle()
            self._sampling = sampling

    def _next_batch(self, iterator: Iterator[Any]) -> PhysicalStep:
        data = next(iterator)
        if not self._replicas.are_many:
            return self._adapter.step_from(data)
        step = self._adapter.step_from(self._replicas.whole(data))
        grouping = self._adapter.grouping
        return self._replicas.padded(
            step, 1 if grouping is None else grouping.rows
        )

    def _checked_step(self, batch: PhysicalStep) -> TrainingStep:
        """Returns the steps for a batch, once the engine is checked on it."""
        check_batch(*batch.data)
        step = self._built_step(batch)
        begins, self._is_begun = not self._is_begun, True
        if begins:
            self._begin(batch)
        # The first replica is checked, with its own copy of the weights.
        with counting_one_replica():
            step.check(batch)
        if self.ledger_run is not None and step.examples_apart:
            self.ledger_run.note = f"examples kept apart: {step.examples_apart}"
        if begins and self._replicas.workers > 1:
            check_agreement(
                self._replicas,
                self._adapter,
                self._planned_round(),
                self._terms.with_optimizer(self._optimizer),
                self._refusal,
            )
        return step

    def _begin(self, batch: PhysicalStep) -> None:
        """Acts once the model is built, before the first round."""
        renew_adapters(self.ready.model, self._optimizer)
        said, query = self.ready.said, self._optimizer.query
        judge(RESTORED, self._optimizer, said=said)
        first = FirstBatch(self._planned_round(), query, self._adapter, batch)
        judge(FIRST_BATCH, first, said=said)
        self.renew_seeds()  # Building may have made generators.
