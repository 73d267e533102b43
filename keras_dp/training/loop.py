"""Runs rounds. The ledger covers each round before it is computed."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from keras_dp.errors import (
    BudgetExceededError,
    PrivateTrainingError,
    noted_in,
)
from keras_dp.keras_internals import counting_one_replica
from keras_dp.ledger import Round, RunWriter
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.private_round import Event
from keras_dp.sampling.draw import Pass
from keras_dp.training.advice.condition import judge
from keras_dp.training.advice.of_trainings import (
    EPOCHS,
    FIRST_BATCH,
    RESTORED,
    FirstBatch,
)
from keras_dp.training.advice.other_trainings import ReleasedWeights
from keras_dp.training.data.batches import Block, StepBatch, places_of
from keras_dp.training.data.first_batch import check_batch
from keras_dp.training.data.in_range import check_in_range
from keras_dp.training.devices.workers import check_agreement
from keras_dp.training.step.layer_states import LayerSeeds, renew_adapters
from keras_dp.training.step.training_step import TrainingStep
from keras_dp.training.training import Training

# Returns the compiled steps for batches of this form. It raises if the model or
# the optimizer was changed since they were compiled.
BuiltStep = Callable[[StepBatch | None], TrainingStep]


class _Planned(NamedTuple):
    """A round to come, with the events of its release.

    `round` is one object as long as it stays the same: the ledger knows at once
    that it covers it.
    """

    event: Event
    round: Round


class _Dispatch(NamedTuple):
    """Rounds that are traced, and that one call will run.

    The ledger records each of them as `round`. The first belongs to `pass_`,
    which is `None` unless the library draws. `run` takes how many are run, up
    to `most`, and returns the metrics and the event of a round.
    """

    round: Round
    pass_: Pass | None
    most: int
    run: Callable[[int], tuple[Mapping[str, Any], Event]]


class TrainingLoop:
    """The rounds of one call of `fit` or `train_on_batch`.

    `logs` are the metrics after the last round, empty before the first. The
    loop `is_over` when there is no room for a round more.
    """

    def __init__(
        self,
        training: Training,
        run: RunWriter,
        built_step: BuiltStep,
        weights: ReleasedWeights,
        try_out: Callable[[], None],
    ) -> None:
        """Starts with nothing recorded.

        `try_out` is called once the first round is traced, before the ledger
        holds anything. An error that it raises costs no privacy.
        """
        self.training, self._run, self._built_step = training, run, built_step
        self._try_out, self._weights = try_out, weights
        self._adapter, self._optimizer = training.adapter, training.optimizer
        self._seeds = LayerSeeds(training.model, training.optimizer.seed)
        self.logs: Mapping[str, Any] = {}
        self.is_over = False
        # It is 0 while the first round is prepared: some acts happen once.
        self._rounds_run = 0
        self._first_epoch = 0  # A callback may restore a later one.
        # The ledger is settled at the end of an epoch, and covers no more.
        self._left_of_epoch = sys.maxsize
        # Where no event follows from answers, that of the first round stays:
        # a release of a state that was changed since is withheld.
        self._next: _Planned | None = None

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Marks the optimizer as busy, and settles the ledger at the end."""
        with busy(self._optimizer):
            try:
                yield
            except BaseException as error:
                with noted_in(error):
                    self._end()
                raise
            self._end()

    def _end(self) -> None:
        self._adapter.close()
        # A model that is saved now does not hold the seeds of rounds.
        self.renew_seeds()
        self._run.settle()

    def begin_epoch(self, epoch: int, steps: int | None) -> None:
        """Draws new seeds, and counts the rounds to come.

        The epoch has `steps` rounds; `None` if nobody knows how many. A
        callback may have restored a later epoch, so that fewer are left.
        """
        if not self._rounds_run:
            self._first_epoch = epoch
        self._left_of_epoch = sys.maxsize if steps is None else steps
        self.renew_seeds()

    def end_epoch(self, logs: Mapping[str, Any]) -> None:
        """Settles the ledger and draws new seeds, before callbacks save."""
        self._run.settle()
        self._weights.note_if_unknown()
        self.renew_seeds()
        judge(EPOCHS, logs, said=self.training.said)

    def renew_seeds(self) -> None:
        """Draws new seeds of layers: a checkpoint may hold the old ones."""
        self._seeds.renew(self._optimizer.rounds_released)

    @property
    def rounds_left(self) -> int | None:
        """How many rounds may still run; `None` where nothing limits them."""
        if self._next is None:  # No batch came.
            return None
        return self._run.rounds_left(self._next.round)

    def run(self, iterator: Iterator[Any], rounds: int) -> int:
        """Runs up to `rounds` rounds, and returns how many.

        Training ends after the last round that the target and the account leave
        room for, also if another process took the room for the next one. No
        room for the first round of the loop is a `BudgetExceededError`. Data
        that ended before the first of these rounds is a `StopIteration`.
        """
        if self._adapter.is_sampler and self.training.one_by_one:
            iterator = self._adapter.physical_batches
        batches = map(self._batch_of, iterator)
        before = self._rounds_run
        # `steps_per_execution` need not divide the rounds of an epoch.
        rounds = min(rounds, self._left_of_epoch)
        try:
            while self._rounds_run < before + rounds and not self.is_over:
                self._block(batches, before + rounds - self._rounds_run)
        except BudgetExceededError:
            if not self._run.ran_out or not self._rounds_run:
                raise
            self.is_over = True
        except StopIteration:
            if self._rounds_run == before:
                raise
        except tf.errors.InvalidArgumentError as error:
            check_in_range(error)
            raise
        except tf.errors.ResourceExhaustedError as error:
            raise _out_of_memory(error) from error
        most = self.training.rounds_from(self._first_epoch)
        if self.is_over and self._rounds_run != most:
            logging.warning(
                "Training ends after %d rounds: one more would exceed the "
                "target epsilon, the account, or the plan of the run.",
                self._rounds_run,
            )
        return self._rounds_run - before

    def _block(self, batches: Iterator[StepBatch], most: int) -> None:
        """Runs up to `most` rounds in one call, which the ledger covers first.

        They are as many as the ledger covers ahead. What is run one by one is a
        block of one round.
        """
        rounds = self._next_rounds(batches, most)
        if not self._rounds_run:
            self._try_out()
        # About once a second, and after each epoch: a look takes as long as a
        # part of a small round.
        if self._run.is_between_blocks:
            self._weights.check(self.training.said)
        alike, pass_ = self._left_of_epoch, rounds.pass_
        if self._optimizer.round.adapts:
            alike = 1
        elif pass_ is not None and pass_.rounds_left is not None:
            alike = min(alike, 1 + pass_.rounds_left)
        count = self._run.cover_some(rounds.round, rounds.most, most=alike)
        self.logs, event = rounds.run(count)
        factor = self._adapter.rows_of_record.bound_factor
        self._run.released(
            lambda: self._optimizer.round.ledger_events(event, factor), count
        )
        self._rounds_run += count
        self._left_of_epoch -= count
        if self._run.is_between_blocks:
            self._weights.note()
        else:
            self._weights.forget()
        next_round = rounds.round
        after = None if pass_ is None else pass_.after(count)
        if self._adapter.sampling_of(after) != next_round.sampling:
            next_round = self._plan(after).round
        self.is_over = self._run.is_exhausted(next_round)

    def _next_rounds(
        self, batches: Iterator[StepBatch], most: int
    ) -> _Dispatch:
        """Draws and traces the next rounds, up to `most` in one call."""
        if self.training.one_by_one:
            return self._one_round(batches)
        samples = self._adapter.batches
        (first,) = samples.ahead(1)
        if len(first.rows) > 1:  # It does not fit into one physical batch.
            samples.take(1)
            return self._one_round(samples.batches_of(first))
        batch = self._adapter.source.physical_batch_size
        step = self._built_step(None) if self._rounds_run else None
        if step is not None and step.check.is_done(batch):
            planned = self._plan(first.pass_)
        else:
            step, planned = self._checked_step(next(samples.batches_of(first)))
            # The check may not tell on this sample, and looks at the next one.
            most = 1
        rows = self._adapter.rows_of_record
        room = step.room_for(self.training.at_once)
        most = len(samples.ahead(min(most, room)))
        block = Block(samples.resident, places_of([first]), room)
        together = step.prepare_block(block, rows, planned.event)

        def run(count: int) -> tuple[Mapping[str, Any], Event]:
            return together(places_of(samples.take(count)))

        return _Dispatch(planned.round, first.pass_, most, run)

    def _one_round(self, batches: Iterator[StepBatch]) -> _Dispatch:
        """Draws and traces one sample, in one physical batch or several."""
        first = next(batches)
        step, (event, round_) = self._checked_step(first)
        rows = self._adapter.rows_of_record
        begin = step.prepare(first, rows, event)

        def run(count: int) -> tuple[Mapping[str, Any], Event]:
            logs, released = begin()
            batch = first
            while not batch.ends_sample:
                batch = next(batches)
                step.prepare(batch, rows, event, is_first=False)()
            if released is None:
                # The release waits for the chief, which has covered the round.
                logs, released = step.release(event)
            if released is None:
                raise RuntimeError("A sample must end with a release.")
            return logs, released

        return _Dispatch(round_, first.pass_, 1, run)

    def _plan(self, pass_: Pass | None) -> _Planned:
        """Plans the next round.

        If a pass begins with it, the ledger settles.
        """
        before, sampling = self._next, self._adapter.sampling_of(pass_)
        is_same = before is None or before.round.sampling == sampling
        if not is_same:
            self._run.settle()
        if before is None or self._optimizer.round.adapts:
            event = self._optimizer.plan()
        elif is_same:
            return before
        else:
            event = before.event
        self._next = _Planned(event, self.training.planned(event, sampling))
        return self._next

    def _batch_of(self, data: Any) -> StepBatch:
        replicas = self.training.replicas
        if not replicas.are_many:
            return self._adapter.batch_from(data)
        batch = self._adapter.batch_from(replicas.whole(data))
        return replicas.padded(batch, self._adapter.rows_of_record.rows)

    def _checked_step(self, batch: StepBatch) -> tuple[TrainingStep, _Planned]:
        """Plans a round, and returns its step once it is checked on a batch."""
        check_batch(*batch.data)
        step = self._built_step(batch)
        planned = self._plan(batch.pass_)
        if self._run.row is None:
            forecast = self.training.forecast(
                planned.round, batch.pass_, self._first_epoch
            )
            self._run.limits.expect(forecast)
        if not self._rounds_run:
            renew_adapters(self.training.model, self._optimizer)
            said, query = self.training.said, self._optimizer.query
            judge(RESTORED, self._optimizer, said=said)
            first = FirstBatch(planned.round, query, self._adapter, batch)
            judge(FIRST_BATCH, first, said=said)
            self.renew_seeds()  # Building may have made generators.
        # The first replica is checked, with its own copy of the weights.
        with counting_one_replica():
            step.check.run(batch)
        if apart := step.check.examples_apart:
            self._run.note = f"examples kept apart: {apart}"
        if not self._rounds_run and self.training.replicas.workers > 1:
            check_agreement(
                self.training.ledger,
                self._adapter,
                self.training.replicas,
                planned.round,
                self.training.agreed(self._first_epoch),
            )
        return step, planned


def _out_of_memory(error: Exception) -> PrivateTrainingError:
    return PrivateTrainingError(
        "The device must have memory for a physical batch, and for the records "
        "where rounds run in blocks. Received: an allocation that failed. Take "
        "a smaller `physical_batch_size`, or steps_per_execution=1 and a "
        f"memory map of the records. TensorFlow says: {error}"
    )


@contextlib.contextmanager
def busy(optimizer: DPOptimizer) -> Iterator[None]:
    """Marks an optimizer as one that runs rounds, or raises if it is one."""
    if optimizer.is_recording:
        raise nested_training()
    optimizer.is_recording = True
    try:
        yield
    finally:
        optimizer.is_recording = False


def nested_training() -> PrivateTrainingError:
    """Returns why a training cannot start inside another one."""
    return PrivateTrainingError(
        "A private training must not be started inside another one of "
        "the same model or optimizer, such as from a callback. Start it after "
        "the other one has ended, or with a model and optimizer of its own."
    )
