"""The terms of one training, settled before anything is recorded."""

from typing import Any, NamedTuple

import keras

from keras_dp.ledger import PrivacyLedger
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.sampling import Sampler
from keras_dp.training.data_adapter import DataAdapter
from keras_dp.training.description import summary_hash
from keras_dp.training.devices.replicas import Replicas
from keras_dp.training.devices.workers import check_worker
from keras_dp.training.epsilon_limit import (
    EpsilonLimit,
    PrivacyTarget,
    default_delta,
)
from keras_dp.training.outside_the_ledger import (
    check_repeats,
    warn_of_other_ledgers,
    warn_of_plain_training,
)
from keras_dp.training.preconditions import (
    check_executions,
    check_one_worker,
    check_precision,
    check_strategies,
    check_unit,
)
from keras_dp.training.run import RunDetails, TrainingRun
from keras_dp.training.settings_advice import advise_delta
from keras_dp.training.side_queries import SideQueries


class Preparation(NamedTuple):
    """A training that may begin.

    Attributes:
        model: The user's.
        ledger: Where its rounds are recorded.
        adapter: Where its samples come from.
        replicas: The replicas of the model.
        delta: At which epsilon is meant.
        limit: How many rounds a target leaves room for, `None` without one.
    """

    model: keras.Model
    ledger: Any
    adapter: DataAdapter
    replicas: Replicas
    delta: float
    limit: EpsilonLimit | None

    def new_run(
        self, details: RunDetails | str | None, most: int | None
    ) -> TrainingRun | None:
        """Returns a run of the ledger, which begins with its first round.

        Args:
            details: As they were given to `fit`.
            most: The most rounds that will run; `None` if the data decides.

        Returns:
            `None` where the chief of a cluster records.
        """
        rows = self.ledger.header.rows_per_unit
        advise_delta(self.delta, self.adapter.population_size, rows)
        if not isinstance(self.ledger, PrivacyLedger):
            return None
        return TrainingRun(
            self.ledger,
            RunDetails.of(details),
            name=self.model.name,
            model=summary_hash(self.model),
            most=most,
            limit=self.limit,
            coming=self.adapter.coming,
        )


def prepared(
    model: keras.Model,
    optimizer: DPOptimizer,
    side_queries: SideQueries,
    adapter: DataAdapter,
    replicas: Replicas,
    *,
    target: PrivacyTarget | None,
    target_epsilon: float | None,
    delta: float | None,
) -> Preparation:
    """Returns the terms of a training, unless it must not begin.

    Args:
        model: The user's.
        optimizer: The optimizer of the private model.
        side_queries: The queries beside that of the gradients.
        adapter: Where samples come from.
        replicas: The replicas of the model.
        target: The most that the ledger may spend, as the model has it.
        target_epsilon: One that comes in its place.
        delta: At which epsilon is meant; by default that of the target, else
            below one record in N.

    Raises:
        PrivateTrainingError: The precision, the strategy, the unit or the data
            does not go with a private training, or there is no ledger.
    """
    check_precision()
    check_strategies(model, optimizer, replicas.strategy)
    ledger: Any = optimizer.required_ledger()
    check_worker(ledger, adapter, replicas)
    header = ledger.header
    check_unit(
        header.unit, header.rows_per_unit, adapter.unit, side_queries.queries
    )
    side_queries.warn_of_metrics()
    warn_of_other_ledgers(model, ledger)
    warn_of_plain_training(model)
    if not adapter.is_sampler:
        check_repeats(adapter.source)
    if delta is None and target is not None:
        delta = target.delta
    if delta is None:
        delta = default_delta(adapter.population_size)
    if target_epsilon is not None:
        target = PrivacyTarget(target_epsilon, delta)
    limit = None
    if target is not None:
        check_one_worker(replicas.workers)
        limit = EpsilonLimit(target, ledger, adapter.rounds_per_pass)
    return Preparation(model, ledger, adapter, replicas, delta, limit)


def options_for_sampler(
    options: dict[str, Any], samples: Sampler, steps_per_execution: int
) -> dict[str, Any]:
    """Returns the options of `fit` for samples, which it has no words for."""
    steps = options.get("steps_per_epoch")
    if steps is None:
        steps = samples.rounds_per_epoch
    check_executions(steps, steps_per_execution)
    # The draws are random already.
    return {**options, "steps_per_epoch": steps, "shuffle": False}
