"""Runs rounds. The ledger covers each round before it is computed."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, Self

import tensorflow as tf
from absl import logging

from keras_dp.errors import (
    BudgetExceededError,
    PrivateTrainingError,
    noted_in,
)
from keras_dp.keras_internals import counting_one_replica
from keras_dp.ledger import (
    Round,
    RunWriter,
    SamplingEvent,
    UnverifiedSampling,
)
from keras_dp.ledger.rows.run_writer import (
    LARGEST_BLOCK,
    Limits,
    NextRound,
    Queries,
)
from keras_dp.optimizers.private_round import Event
from keras_dp.training.advice.condition import judge
from keras_dp.training.advice.of_trainings import (
    EPOCHS,
    FIRST_BATCH,
    RESTORED,
    FirstBatch,
)
from keras_dp.training.advice.other_trainings import ReleasedWeights
from keras_dp.training.data.block import Block
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
BuiltStep = Callable[[PhysicalStep | None], TrainingStep]


class TrainingLoop:
    """The rounds of one call of `fit` or `train_on_batch`.

    Attributes:
        ready: The terms of the training.
        ledger_run: Covers the rounds of the loop in the ledger.
        logs: The metrics after the last round, empty before the first.
    """

    def __init__(
        self,
        ready: Preparation,
        terms: FitTerms,
        run: RunWriter | None,
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
        self.ready = ready
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
        self._round: tuple[Event, SamplingEvent, Round] | None = None
        self.ledger_run: RunWriter | RunOfChief = RunOfChief()
        if run is not None and self._refusal is None:
            self.ledger_run = run

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Marks the optimizer as busy, and ends the run at the end.

        Raises:
            PrivateTrainingError: The optimizer is training already, or a round
                released something else than the ledger covers.
        """
        with recording_with(
            self._optimizer, self.ledger_run, ends_run=self._ends_run
        ):
            try:
                yield
            finally:
                self._adapter.close()
                # A model that is saved now does not hold the seeds of rounds.
                self.renew_seeds()

    def run_one_by_one(self, why: str) -> None:
        """Runs the rounds from now on one by one, for a reason."""
        self.ready = self.ready._replace(one_by_one=why)

    def begin_epoch(self, epoch: int) -> None:
        """Draws new seeds, and counts the rounds to come.

        Args:
            epoch: The number of the epoch. A callback may have restored it, so
                that fewer epochs are left.
        """
        if not self._rounds_run:
            self._terms = self._terms.from_epoch(epoch)
            self.ledger_run.limits.expect(self._terms.rounds)
        self._left_of_epoch = self._terms.options.get("steps_per_epoch")
        self.renew_seeds()

    def end_epoch(self) -> None:
        """Settles the ledger and draws new seeds, before callbacks save."""
        self.ledger_run.settle()
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
        event, sampling = self._plan(), self._sampling
        made = self._round
        # Rounds that are equal are one object, which the ledger knows at once.
        if made is None or made[0] is not event or made[1] is not sampling:
            round_ = self._optimizer.planned_round(
                event,
                sampling,
                seeded=self._adapter.seeded,
                gradient_bound_factor=self._bound_factor,
            )
            made = self._round = event, sampling, round_
        return made[2]

    @property
    def is_exhausted(self) -> bool:
        """Whether there is no room for a round more."""
        return self.ledger_run.is_exhausted(self._planned_round)

    @property
    def rounds_left(self) -> int | None:
        """How many rounds may still run; `None` where nothing limits them."""
        return self.ledger_run.rounds_left(self._planned_round)

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
        if self._adapter.is_sampler and self.ready.one_by_one:
            if self._own is None:
                self._own = self._adapter.batches()
            iterator = self._own
        before = self._rounds_run
        if self._left_of_epoch is not None:
            # `steps_per_execution` need not divide the rounds of an epoch.
            rounds = min(rounds, self._left_of_epoch)
            self._left_of_epoch -= rounds
        try:
            done = 0
            while done < rounds:
                if self._left_of_epoch is not None:
                    self._until_settled = self._left_of_epoch + rounds - done
                if self.ready.one_by_one:
                    self._run_round(map(self._step_of, iterator))
                    done += 1
                else:
                    done += self._run_block(rounds - done)
                if self.is_exhausted:
                    break
        except BudgetExceededError:
            if not self.ledger_run.ran_out or not self._rounds_run:
                raise
        except StopIteration:
            if self._rounds_run == before:
                raise
        except tf.errors.InvalidArgumentError as error:
            check_in_range(error)
            raise
        except tf.errors.ResourceExhaustedError as error:
            raise _out_of_memory(error) from error
        if self.is_exhausted:
            self._stop()
            if self._rounds_run != self._terms.rounds:
                logging.warning(
                    "Training ends after %d rounds: one more would exceed the "
                    "target epsilon, the account, or the plan of the run.",
                    self._rounds_run,
                )
        return self._rounds_run - before

    def _run_block(self, most: int) -> int:
        """Runs up to `most` rounds in one call, and returns how many.

        They are as many as the ledger covers ahead, each on a sample of one
        physical batch. The records of a larger sample are gathered on the host.
        """
        samples = self._adapter.samples
        first = samples.first()
        if len(first.rows) > 1:
            self._run_round(self._adapter.steps_of(samples.take()))
            return 1
        self._turn_to(self._adapter.source.sampling_of(first.of))
        step = self._built_step(None) if self._is_begun else None
        batch = self._adapter.source.physical_batch_size
        if step is None or not step.is_checked(batch):
            step = self._checked_step(next(self._adapter.steps_of(first)))
            most = 1
        if self._adapter.rounds_per_pass is not None:
            self._left = first.of.rounds_left + 1
        room = step.room_for(self._terms.steps_per_execution)
        most = samples.alike(min(most, room))
        planned, grouping = self._plan(), self._adapter.grouping
        records = self._adapter.resident
        block = Block(records, samples.places(1), room)
        step.prepare_block(block, grouping, planned)
        self._before_rounds()
        count = self.ledger_run.cover_some(
            self._planned_round(),
            most,
            most=min(self._left, self._until_settled),
        )
        block = block._replace(places=samples.places(count))
        self.logs, event = step.run_block(block, grouping, planned)
        for _ in range(count):
            last = samples.take()
        self._after_rounds(event, count)
        self._turn_to(self._adapter.source.sampling_of(last.of.next_round()))
        return count

    def _before_rounds(self) -> None:
        """Acts before the ledger covers rounds whose step is traced."""
        if self._try_out is not None:
            self._try_out()
            self._try_out = None
        # Looked at about once a second: to compare takes as long as to copy.
        if self._weights is not None and self.ledger_run.is_between_blocks:
            self._weights.check(self.ready.said)

    def _after_rounds(self, event: Event, count: int) -> None:
        """Compares what rounds released with what the ledger covers."""
        factor = self._bound_factor
        self.ledger_run.released(
            lambda: self._optimizer.round.ledger_events(event, factor), count
        )
        self._rounds_run += count
        if self._weights is not None:
            if self.ledger_run.is_between_blocks:
                self._weights.note()
            else:
                self._weights.forget()

    def _run_round(self, steps: Iterator[PhysicalStep]) -> None:
        """Runs one sample to its release."""
        batch = next(steps)
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
        self._before_rounds()
        adapts = self._optimizer.round.adapts
        most = 1 if adapts else min(self._left, self._until_settled)
        self.ledger_run.cover(self._planned_round(), most=most)
        logs, event = step.run(batch, kind, planned)
        while not batch.ends_sample:
            batch = next(steps)
            part = BatchKind(is_whole=False, grouping=grouping)
            step.run(batch, part, planned, is_first=False)
        if not is_whole:
            # The release waits for the chief, which has covered the round.
            logs, event = step.release(planned)
        if event is None:
            raise RuntimeError("A sample must end with a release.")
        self.logs = logs
        self._after_rounds(event, 1)
        self._turn_to(batch.next_sampling)

    def _turn_to(self, sampling: SamplingEvent) -> None:
        """Settles the reserved rounds if a new pass begins."""
        if sampling != self._sampling:
            self.ledger_run.settle()
            self._sampling = sampling

    def _step_of(self, data: Any) -> PhysicalStep:
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
        if step.examples_apart:
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


def _out_of_memory(error: Exception) -> PrivateTrainingError:
    return PrivateTrainingError(
        "The device must have memory for a physical batch, and for the records "
        "where rounds run in blocks. Received: an allocation that failed. Take "
        "a smaller `physical_batch_size`, or steps_per_execution=1 and a "
        f"memory map of the records. TensorFlow says: {error}"
    )


class RunOfChief:
    """Stands for the run where another worker, the chief, records.

    The sums of this worker are released with those of the chief or not at all,
    and the chief covers a round before it takes part.
    """

    row = None
    # The chief stops, and the others with it.
    ran_out = is_between_blocks = False
    note = ""

    def __init__(self) -> None:
        self.limits = Limits()

    def cover(self, planned: Round, *, most: int) -> None:
        """Does nothing."""

    def cover_some(self, planned: Round, count: int, *, most: int) -> int:
        """Returns `count`."""
        return count

    def released(self, queries: Callable[[], Queries], count: int) -> None:
        """Does nothing: the chief has the same event."""

    def settle(self) -> None:
        """Does nothing."""

    def is_exhausted(self, coming: NextRound) -> bool:
        """Returns False."""
        return False

    def rounds_left(self, coming: NextRound) -> int | None:
        """Returns `None`."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Does nothing: the chief ends the run."""


class Recorded(Protocol):
    """An object that runs rounds, such as an optimizer.

    Attributes:
        is_recording: Whether it runs rounds now.
    """

    is_recording: bool


@contextlib.contextmanager
def recording_with(
    optimizer: Recorded, run: RunWriter | RunOfChief, *, ends_run: bool = True
) -> Iterator[None]:
    """Marks an optimizer as busy, and settles its rounds at the end.

    Args:
        optimizer: Its rounds are run inside.
        run: It covers them.
        ends_run: Whether the run ends with the rounds.

    Raises:
        PrivateTrainingError: The optimizer is training already.
    """
    if optimizer.is_recording:
        raise nested_training()
    optimizer.is_recording = True
    try:
        with run if ends_run else _settled(run):
            yield
    finally:
        optimizer.is_recording = False


@contextlib.contextmanager
def _settled(run: RunWriter | RunOfChief) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        with noted_in(error):
            run.settle()
        raise
    run.settle()


def nested_training() -> PrivateTrainingError:
    """Returns why a training cannot start inside another one."""
    return PrivateTrainingError(
        "A private training must not be started inside another one of "
        "the same model or optimizer, such as from a callback. Start it after "
        "the other one has ended, or with a model and optimizer of its own."
    )
