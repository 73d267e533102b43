"""The terms of one training, checked before anything is recorded."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras

from keras_dp import _check
from keras_dp._counted import in_step
from keras_dp.keras_internals import sliced_arrays, untuned_arrays
from keras_dp.ledger import (
    Forecast,
    PrivacyLedger,
    Round,
    RunWriter,
    SamplingEvent,
)
from keras_dp.optimizers.dp_optimizer import DPOptimizer, LedgerOfChief
from keras_dp.optimizers.private_round import Event, PrivateRound
from keras_dp.sampling import Sampler
from keras_dp.sampling.draw import Pass
from keras_dp.spending.epsilon_limit import EpsilonLimit, PrivacyTarget
from keras_dp.spending.run import RunDetails, new_run
from keras_dp.training.advice.condition import Said, judge
from keras_dp.training.advice.of_trainings import (
    BATCHES,
    BESIDES_A_SAMPLER,
    PREPARED,
    VALIDATION,
)
from keras_dp.training.advice.other_trainings import warn_of_other_ledgers
from keras_dp.training.data.batches import batches_in_order
from keras_dp.training.data.data_adapter import DataAdapter, population_of
from keras_dp.training.data.first_batch import check_given, check_some_targets
from keras_dp.training.description import summary_hash
from keras_dp.training.devices.replicas import Replicas
from keras_dp.training.devices.workers import refusal_of
from keras_dp.training.metrics.side_queries import SideQueries


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The terms of a training: what is trained, on what, and how far.

    The private model makes one for each call that trains. What changes while
    rounds run is in `TrainingLoop`.

    Attributes:
        round: The round of an audit, which answers in the place of that of the
            optimizer; `None` without one.
        fit: The arguments for Keras's own `fit`, but for the data.
        one_by_one: Why rounds run one by one, "" if they run in blocks.
        by_xla: Whether XLA compiles the step though nobody asked for it.
        at_once: The most rounds between two calls of callbacks.
        delta: The delta of the target and of the shown epsilon, in (0, 1).
        target: The most that the ledger may spend; `None` for no limit.
        said: The warnings of the private model so far.
    """

    model: keras.Model
    optimizer: DPOptimizer
    ledger: PrivacyLedger | LedgerOfChief
    side_queries: SideQueries
    round: PrivateRound | None
    adapter: DataAdapter
    replicas: Replicas
    fit: Mapping[str, Any]
    one_by_one: str
    by_xla: bool
    at_once: int
    delta: float
    target: PrivacyTarget | None
    details: RunDetails
    said: Said

    def check(self) -> None:
        """Raises for terms that do not go together."""
        adapter, said = self.adapter, self.said
        if (rounds := self.rounds_from(0)) is not None:
            given = {"epochs * steps_per_epoch": rounds}
            _check.integer_at_least(1, **given)
        ledger, workers = self.ledger, self.replicas.workers
        refusal = refusal_of(ledger, adapter, self.replicas)
        # Several workers raise together, in `check_agreement`.
        if refusal is not None and workers == 1:
            raise refusal
        if not adapter.is_sampler and adapter.source is not None:
            judge(BATCHES, adapter.source, said=said)
        judge(PREPARED, self, said=said)
        warn_of_other_ledgers(self.model, ledger)
        is_chief_alone = workers == 1 and isinstance(ledger, PrivacyLedger)
        if self.target is not None and not is_chief_alone:
            raise ValueError(  # It would stop the chief alone.
                "`target_epsilon` must be None with several workers, because "
                f"only the chief has the ledger. Received: {workers} workers. "
                "Choose the noise for your epochs with calibrate_noise."
            )

    def rounds_from(self, epoch: int) -> int | None:
        """Returns how many rounds run at most; `None` if the data decides."""
        steps = self.fit.get("steps_per_epoch")
        if steps is None:
            return None
        return int(steps) * (self.fit.get("epochs", 1) - epoch)

    def agreed(self, first_epoch: int) -> tuple[Any, ...]:
        """Returns what all workers must agree on, next to the planned round."""
        return (
            self.fit.get("epochs", 1),
            first_epoch,
            self.fit.get("steps_per_epoch"),
            self.at_once,
            self.fit.get("validation_data") is not None,
            self.fit.get("validation_freq", 1),
            keras.saving.serialize_keras_object(self.optimizer.inner),
        )

    def planned(self, event: Event, sampling: SamplingEvent) -> Round:
        """Returns a round as the ledger records it."""
        return self.optimizer.planned_round(
            event,
            sampling,
            seeded=self.adapter.seeded,
            gradient_bound_factor=self.adapter.rows_of_record.bound_factor,
        )

    def forecast(
        self, planned: Round, pass_: Pass | None, epoch: int = 0
    ) -> Forecast:
        """Returns the rounds to come, before the first of them, `planned`."""
        most, round_ = self.rounds_from(epoch), self.optimizer.round

        def coming(rounds: int) -> list[tuple[Round, int]]:
            if pass_ is None:
                return [(planned, rounds)]
            return [
                (dataclasses.replace(planned, sampling=each), count)
                for each, count in self.adapter.source.planned(rounds, pass_)
            ]

        events = round_.coming_events(self.optimizer.read_state())
        if events is None:
            rounds = [] if most is None else coming(most)
            return Forecast(most, rounds)
        factor = self.adapter.rows_of_record.bound_factor
        left = sum(count for _, count in events)
        correlated = [
            (
                dataclasses.replace(
                    drawn, queries=round_.ledger_events(event, factor)
                ),
                count,
            )
            for (drawn, event), count in in_step(coming(left), events)
        ]
        return Forecast(most, correlated, are_all=True)

    def new_run(self) -> RunWriter:
        """Returns a run of the ledger, which begins with its first round.

        A worker whose chief records covers its rounds in a ledger that nobody
        reads. Its sums are released with those of the chief or not at all.
        """
        most, ledger = self.rounds_from(0), self.ledger
        if not isinstance(ledger, PrivacyLedger):
            ledger = PrivacyLedger.in_memory(dataset=ledger.header.dataset)
            return new_run(ledger, most=most)
        limit = None
        if self.target is not None:
            passes = self.adapter.rounds_per_pass
            limit = EpsilonLimit(self.target, ledger, passes)
        return new_run(
            ledger,
            self.details,
            name=self.model.name,
            model=summary_hash(self.model),
            most=most,
            epsilon_limit=limit,
            delta=self.delta,
        )

    def given_to_keras(self, callbacks: Any) -> dict[str, Any]:
        """Returns the arguments of Keras's own `fit`."""
        given = {**self.fit, "x": self.adapter.source, "callbacks": callbacks}
        if self.adapter.is_sampler:
            given["x"] = self.replicas.placeholder_data()
        if self.replicas.are_many:
            return given
        # Replicas would wait without the tuning, too.
        is_capped = keras.config.max_steps_per_epoch()
        if not self.adapter.is_sampler and not is_capped:
            given = untuned_arrays(given)
        if given.get("validation_data") is not None:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(
                given["validation_data"]
            )
            size = given.get("validation_batch_size") or given.get("batch_size")
            given["validation_data"] = sliced_arrays(
                x, y, weight, size, given.get("validation_steps")
            )
        return given


def audit_of(callbacks: Any) -> Any:
    """Returns the callback whose round answers, `None` without one."""
    audits = [
        each
        for each in keras.tree.flatten(callbacks)
        if hasattr(each, "answering_round")
    ]
    if len(audits) > 1:
        raise ValueError(
            "`callbacks` must hold one audit at most, whose round answers. "
            f"Received: {len(audits)} of them. Call fit once for each."
        )
    return audits[0] if audits else None


def keras_arguments(
    adapter: DataAdapter, given: Mapping[str, Any], said: Said
) -> dict[str, Any]:
    """Returns the arguments for Keras's own `fit`, but for the data."""
    if adapter.source is None and adapter.unit == "example":
        raise ValueError(
            "`x` must be given: a PoissonBatches, or what Keras takes. "
            "Received: x=None. Only a model of make_private has samples, "
            "and a file does not keep them: after loading, pass the model "
            "inside, `.model`, to make_private again, with the same ledger."
        )
    held_back = given.get("validation_data")
    for name, data in {
        "x": adapter.source,
        "validation_data": held_back,
    }.items():
        if population_of(data) == 0:
            raise ValueError(
                f"`{name}` must hold at least one record. Received: data of no "
                "records. Pass some records."
            )
    found = {**given, "class_weight": None}  # The adapter weighs the classes.
    if adapter.is_sampler:
        judge(BESIDES_A_SAMPLER, given)
        # The sampler draws at random: Keras has nothing to shuffle.
        found["shuffle"] = False
        if found.get("steps_per_epoch") is None:
            found["steps_per_epoch"] = adapter.source.rounds_per_epoch
    if isinstance(held_back, Sampler):
        held_back = found["validation_data"] = batches_in_order(held_back)
    if held_back is not None:
        check_given(validation_data=held_back)
        check_some_targets(validation_data=held_back)
        judge(VALIDATION, adapter.source, held_back, said=said)
    return found
