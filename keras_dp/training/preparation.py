"""Checks the terms of one training before anything is recorded."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras

from keras_dp._counted import in_step
from keras_dp.keras_internals import untuned_arrays
from keras_dp.ledger import PrivacyLedger, Round, RunWriter
from keras_dp.optimizers.dp_optimizer import DPOptimizer, LedgerOfChief
from keras_dp.planning.calibration import check_target_delta, default_delta
from keras_dp.sampling import Sampler
from keras_dp.spending.epsilon_limit import (
    EpsilonLimit,
    PrivacyTarget,
)
from keras_dp.spending.run import RunDetails, new_run
from keras_dp.training.advice.condition import Said, judge
from keras_dp.training.advice.of_trainings import BATCHES, PREPARED, TARGETS
from keras_dp.training.advice.other_trainings import warn_of_other_ledgers
from keras_dp.training.data.data_adapter import DataAdapter
from keras_dp.training.data.sampled_batches import batches_in_order
from keras_dp.training.description import summary_hash
from keras_dp.training.devices.replicas import Replicas
from keras_dp.training.devices.workers import check_worker
from keras_dp.training.metrics.side_queries import SideQueries


class Preparation(NamedTuple):
    """The terms of a training that may begin.

    Attributes:
        model: The user's model.
        optimizer: The optimizer of the private model.
        side_queries: The queries beside the query of the gradients.
        adapter: The data, which yields the samples.
        replicas: The replicas of the model.
        delta: The delta of the target and of the shown epsilon, in (0, 1).
        limit: The limit that the target sets, `None` without a target.
        said: The warnings of the private model so far.
        one_by_one: Why rounds run one by one, "" if they run in blocks.
    """

    model: keras.Model
    optimizer: DPOptimizer
    side_queries: SideQueries
    adapter: DataAdapter
    replicas: Replicas
    delta: float
    limit: EpsilonLimit | None
    said: Said
    one_by_one: str

    @property
    def ledger(self) -> PrivacyLedger | LedgerOfChief:
        """The ledger that records the rounds."""
        return self.optimizer.required_ledger()

    def keras_data(
        self, y: Any, batch_size: int | None, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns the data, and its options, for Keras's own `fit`.

        Args:
            y: The argument of the private `fit`.
            batch_size: The same.
            options: Other arguments, from `keras_options`.
        """
        given = {"x": self.adapter.source, "y": y, "batch_size": batch_size}
        given |= options
        if self.adapter.is_sampler:
            return {**given, "x": self.replicas.nothing()}
        # Replicas wait with and without the tuning.
        if self.replicas.are_many or keras.config.max_steps_per_epoch():
            return given
        return untuned_arrays(given)

    def keras_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options for Keras's own `fit`.

        Args:
            options: The options of the private `fit`. With a sampler, their
                `steps_per_epoch` comes before the rounds that it says.
        """
        found = dict(options)
        if isinstance(found.get("validation_data"), Sampler):
            found["validation_data"] = batches_in_order(
                found["validation_data"]
            )
        found["class_weight"] = None  # The adapter weighs the classes.
        if self.adapter.is_sampler:
            # The sampler draws at random: Keras has nothing to shuffle.
            found["shuffle"] = False
            if found.get("steps_per_epoch") is None:
                found["steps_per_epoch"] = self.adapter.source.rounds_per_epoch
        return found

    def continuing(
        self, details: RunDetails | str | None, last: int | None
    ) -> RunDetails:
        """Returns details that continue a run, if that was interrupted.

        Args:
            details: The argument `run` of `fit`.
            last: The row in which the run began; `None` without one.
        """
        found = RunDetails.of(details)
        if isinstance(self.ledger, PrivacyLedger):
            for run in self.ledger.runs:
                if run.row == last and run.rest is not None:
                    found = dataclasses.replace(found, continues=run.number)
        return found

    def _correlated(self, planned: Round) -> list[tuple[Round, int]] | None:
        """Returns all rounds to come of correlated noise; else `None`.

        Args:
            planned: The first of the rounds.
        """
        asked, factor = self.optimizer.round, self.adapter.bound_factor
        events = asked.coming_events(self.optimizer.read_state())
        if events is None:
            return None
        rounds = sum(count for _, count in events)
        return [
            (
                dataclasses.replace(
                    drawn, queries=asked.ledger_events(event, factor)
                ),
                count,
            )
            for (drawn, event), count in in_step(
                self.adapter.coming(planned, rounds), events
            )
        ]

    def new_run(
        self, details: RunDetails | str | None, most: int | None
    ) -> RunWriter:
        """Returns a run of the ledger, which begins with its first round.

        A worker whose chief records covers its rounds in a ledger that nobody
        reads. Its sums are released with those of the chief or not at all.

        Args:
            details: The argument `run` of `fit`.
            most: The most rounds that will run; `None` if the data decides.

        Raises:
            TypeError: `details` is something else.
            ValueError: The ledger has no such account, or several of which
                none was named.
        """
        ledger = self.ledger
        if not isinstance(ledger, PrivacyLedger):
            ledger = PrivacyLedger.in_memory(dataset=ledger.header.dataset)
            return new_run(ledger, most=most)
        return new_run(
            ledger,
            RunDetails.of(details),
            name=self.model.name,
            model=summary_hash(self.model),
            most=most,
            target=self.limit,
            coming=self.adapter.coming,
            correlated=self._correlated,
            delta=self.delta,
        )


def prepare(
    model: keras.Model,
    optimizer: DPOptimizer,
    side_queries: SideQueries,
    adapter: DataAdapter,
    replicas: Replicas,
    said: Said,
    one_by_one: str,
    *,
    target: PrivacyTarget | None,
    target_epsilon: float | None,
    delta: float | None,
) -> Preparation:
    """Returns the terms of a training, unless it must not begin.

    Args:
        model: The user's model.
        optimizer: The optimizer of the private model.
        side_queries: The queries beside the query of the gradients.
        adapter: The data, which yields the samples.
        replicas: The replicas of the model.
        said: The warnings of the private model so far.
        one_by_one: Why rounds run one by one, "" if they run in blocks.
        target: The target of the private model, or `None`.
        target_epsilon: The epsilon of a target in its place, > 0.
        delta: The delta of the target and of the shown epsilon, in (0, 1). By
            default the delta of `target`, else `default_delta` of the data.

    Raises:
        PrivateTrainingError: The precision, the strategy, the unit or the data
            does not go with a private training, or there is no ledger.
        ValueError: The data holds no record, `target_epsilon` or `delta` is out
            of its range, or there is a target with several workers.
    """
    if adapter.population_size == 0:
        raise ValueError(
            "`x` must hold at least one record. Received: data of no records. "
            "Pass the records to train on."
        )
    ledger = optimizer.required_ledger()
    check_worker(ledger, adapter, replicas)
    if not adapter.is_sampler and adapter.source is not None:
        judge(BATCHES, adapter.source, said=said)
    if delta is None and target is not None:
        delta = target.delta
    if delta is None:
        delta = default_delta(adapter.population_size)
    check_target_delta(delta)
    if target_epsilon is not None:
        target = PrivacyTarget(target_epsilon, delta)
        judge(TARGETS, target_epsilon, said=said)
    ready = Preparation(
        model,
        optimizer,
        side_queries,
        adapter,
        replicas,
        delta,
        None,
        said,
        one_by_one,
    )
    judge(PREPARED, ready, said=said)
    warn_of_other_ledgers(model, ledger)
    if target is None:
        return ready
    if replicas.workers > 1 or not isinstance(ledger, PrivacyLedger):
        raise ValueError(  # It would stop the chief alone.
            "`target_epsilon` must be None with several workers, because only "
            "the chief has the ledger. Received: "
            f"{replicas.workers} workers. Choose the noise for your epochs "
            "with calibrate_noise."
        )
    limit = EpsilonLimit(target, ledger, adapter.rounds_per_pass)
    return ready._replace(limit=limit)
