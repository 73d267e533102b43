"""The noise of a training that meets a target, or fits an account."""

import decimal
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp._counted import in_step
from keras_dp.budgets import charge_of
from keras_dp.dp_queries import (
    DPQuery,
    GaussianAverageQuery,
    NormalizedQuery,
)
from keras_dp.errors import BudgetExceededError, CalibrationError
from keras_dp.ledger import AccountRecord, Round, Strategy
from keras_dp.optimizers.private_round import PrivateRound
from keras_dp.planning import calibrate_scale
from keras_dp.planning.calibration import Unreachable, least_that_meets
from keras_dp.recipes.correlation import (
    correlated,
    gradient_specs,
    with_noise_of_sums,
)
from keras_dp.recipes.held_rounds import HeldRounds
from keras_dp.recipes.training_data import summed_records
from keras_dp.sampling import Sampler
from keras_dp.spending import PrivacyTarget
from keras_dp.training import (
    PrivateMetric,
    plan_batch_statistics,
)
from keras_dp.training.metrics.side_queries import (
    SideQueries,
    trains_normalization,
)

# The largest scale that is searched.
_MOST = 1e12


def least_within(
    account: AccountRecord,
    round_for: Callable[[float], Round],
    rounds: int,
    *,
    least: float,
) -> float:
    """Returns the least noise scale at which an account has room for rounds.

    Guarantee: unless others spend from it meanwhile, the account pays for all
    of the rounds.

    Args:
        account: The one that pays.
        round_for: From a scale > 0 to a round. A larger scale must never cost
            more.
        rounds: >= 1.
        least: The scale is not below.

    Raises:
        BudgetExceededError: The account does not pay for such rounds, whatever
            their noise.
        CalibrationError: It has no room, whatever their noise.
        UnsupportedEventError: It has no price for such rounds.

    >>> from keras_dp.budgets import RenyiFilter, open_account
    >>> from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> account = open_account(ledger, "all", RenyiFilter(1.0, 1e-5))
    >>> scale = least_within(account, lambda scale: Round(
    ...     FullDataset(), (GaussianSum("sum", 1.0, scale),)), 28, least=1.0)
    >>> round(scale, 2)
    21.4
    """

    def has_room(scale: float) -> bool:
        charge = charge_of(account, round_for(scale))
        return account.balance.room(charge, rounds) == rounds

    def share(log_scale: float) -> float:
        """Returns the largest share of its slot that the rounds would take."""
        charge = charge_of(account, round_for(math.exp(log_scale)))
        left = [
            capacity - spent
            for capacity, spent in zip(*account.balance, strict=True)
        ]
        return max(
            (
                rounds * price / left[slot] if left[slot] else math.inf
                for slot, price in charge.prices
            ),
            default=0.0,
        )

    try:
        if has_room(least):
            return least
    except BudgetExceededError as error:
        raise BudgetExceededError(
            f"{error} Noise that is found for a target is in no plan: name an "
            "account with a filter, or compile a PrivateModel with a query of "
            "the plan."
        ) from error
    start = math.log(least)
    found = least_that_meets(
        share, 1.0, least=start, most=math.log(_MOST), start=start
    )
    scale = math.inf if isinstance(found, Unreachable) else math.exp(found)
    # A share that is rounded to 1 may be a unit above.
    if math.isinf(scale) or not has_room(scale := scale * (1 + 1e-12)):
        raise CalibrationError(
            f"The account must have room for {rounds:,} rounds. Received: the "
            f"account {account.account.name!r}, which has none for so many, "
            "whatever their noise. Train for fewer epochs, or with another "
            "account (`run=RunDetails(account=...)`)."
        )
    return scale


# The least signal of a training, in standard deviations of its noise.
_LEAST_SIGNAL = 3.0
# Noise is rounded up to so many digits. So it is the same wherever it is
# computed, and what is printed is what runs.
_DIGITS = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)


class RoundQueries(NamedTuple):
    """The queries of every round.

    Attributes:
        gradients: The average of the gradients; for correlated noise, with the
            independent noise that leaves as much noise in the sums over rounds.
        released: The query for the optimizer: `gradients`, or the same with
            correlated noise.
        batch_statistics: For `compile`, `None` if none are released.
        round: The round as the ledger will hold it. Of a sampler that makes
            passes over the data, it is the first round.
    """

    gradients: GaussianAverageQuery
    released: DPQuery
    batch_statistics: DPQuery | None
    round: Round

    @property
    def noise_multiplier(self) -> float:
        """The noise of what is released, over the bound on a record."""
        released: Any = self.released
        if isinstance(released, NormalizedQuery):
            released = released.numerator_query
        return float(released.noise_multiplier)


def signal_of(query: GaussianAverageQuery, rounds: int) -> float:
    """Returns the longest sum of all averages over the stddev of its noise.

    The averages then have the norm of the clip, and one direction.
    """
    return math.sqrt(rounds) * query.denominator / query.noise_multiplier


def queries_for(
    target: PrivacyTarget,
    model: keras.Model,
    samples: Sampler,
    epochs: int,
    held: HeldRounds,
    *,
    l2_norm_clip: float,
    gamma: float | None = None,
    precision: str = "assumed",
    strategy: Strategy | None = None,
    private_metrics: Mapping[str, PrivateMetric] | None,
    batch_statistics: DPQuery | str | None,
    account: AccountRecord | None = None,
) -> RoundQueries:
    """Returns queries with the least noise that meets a target.

    The noise is found for the events that the ledger would record.
    Private metrics and a query of batch statistics keep their own noise; with
    "auto" the statistics get their share of the noise that is found.

    Args:
        target: For all rounds of the ledger.
        model: Built, where batch statistics are "auto".
        samples: How samples are drawn.
        epochs: >= 1.
        held: Rounds that are spent already.
        l2_norm_clip: Bound on a record, > 0.
        gamma: See `GaussianSumQuery`.
        precision: See `GaussianSumQuery`.
        strategy: How the noise is correlated; `None` for independent noise.
        private_metrics: As in `PrivateModel.compile`.
        batch_statistics: As in `make_private`.
        account: The account that pays, if the ledger has any: it then has room
            for all rounds as well.

    Raises:
        BudgetExceededError: The account does not pay for such rounds.
        CalibrationError: No noise meets the target, or it would hide all that
            is learned.
        PrivateTrainingError: The batch statistics need a model that is built.
        ValueError: A strategy does not go with the other arguments.
    """
    automatic = batch_statistics == "auto" and trains_normalization(model)
    if account is not None and strategy is not None:
        raise ValueError(
            "`noise` must be independent where an account pays: it has one "
            "price for all rounds. Received: the "
            f'account {account.account.name!r}. Take noise="independent".'
        )
    if strategy is not None and automatic:
        raise ValueError(
            "`noise` must be independent with batch statistics. Received: "
            f"noise={strategy!r}. "
            "replace_batch_normalization does without the statistics."
        )

    def average(scale: float) -> GaussianAverageQuery:
        return GaussianAverageQuery(
            l2_norm_clip,
            scale * _bound_factor(samples) * l2_norm_clip,
            summed_records(samples),
            gamma=gamma,
            precision=precision,
        )

    asked = _Asked(
        model if automatic else None,
        samples,
        epochs * samples.rounds_per_epoch,
        average,
        strategy,
        private_metrics,
        None if batch_statistics == "auto" else batch_statistics,
    )
    try:
        scale = calibrate_scale(
            asked.rounds_at,
            target_epsilon=target.epsilon,
            delta=target.delta,
            ledger=held.replay,
        )
    except CalibrationError as error:
        reasons = held.why_no_noise_meets(target)
        if private_metrics or isinstance(batch_statistics, DPQuery):
            reasons += (
                " Private metrics and batch statistics keep the noise that "
                "they have: give them more."
            )
        raise CalibrationError(f"{error}{reasons}") from error
    least = scale = _rounded_up(scale)
    if account is not None:
        scale = least_within(account, asked.round_at, asked.rounds, least=least)
    if scale != least:
        scale = _rounded_up(scale)
    query, statistics = asked.queries_at(scale)
    specs = None if strategy is None else gradient_specs(model, samples)
    release = asked.released(query, specs)
    if strategy is not None:
        query = with_noise_of_sums(query, strategy, asked.rounds)
    _check_signal(query, asked.rounds, target, held)
    return RoundQueries(query, release, statistics, asked.round_at(scale))


class _Asked(NamedTuple):
    """A training whose noise is looked for, as a function of its scale.

    Attributes:
        normalized: The model whose batch statistics get a share of the noise,
            `None` where none do.
        samples: How samples are drawn.
        rounds: All rounds of the training.
        average: Returns the query of the gradients.
        strategy: How the noise is correlated.
        private_metrics: With the noise that they have.
        batch_statistics: Likewise.
    """

    normalized: keras.Model | None
    samples: Sampler
    rounds: int
    average: Callable[[float], GaussianAverageQuery]
    strategy: Strategy | None
    private_metrics: Mapping[str, PrivateMetric] | None
    batch_statistics: DPQuery | str | None

    def queries_at(self, scale: float) -> tuple[GaussianAverageQuery, Any]:
        """Returns the queries of the gradients and of the batch statistics."""
        statistics: Any = self.batch_statistics
        if self.normalized is not None:
            scale, statistics = plan_batch_statistics(
                self.normalized,
                noise_multiplier=scale,
                denominator=self.samples.expected_sample_size,
            )
        return self.average(scale), statistics

    def released(self, query: GaussianAverageQuery, specs: Any) -> DPQuery:
        """Returns the query for the optimizer."""
        if self.strategy is None:
            return query
        return correlated(query, self.strategy, self.rounds, specs)

    def rounds_at(self, scale: float) -> list[tuple[Round, int]]:
        """Returns all rounds as the ledger would record them."""
        gradients, statistics = self.queries_at(scale)
        side = SideQueries(self.private_metrics, statistics)
        # The events do not depend on the shapes of a record.
        of_gradients = self.released(gradients, tf.TensorSpec([]))
        round_ = PrivateRound.of(of_gradients, side.queries)
        state = round_.initial_state(None)
        planned = [(round_.plan(state), self.rounds)]
        events = round_.coming_events(state) or planned
        factor = _bound_factor(self.samples)
        of_events = [
            (round_.ledger_events(event, factor), count)
            for event, count in events
        ]
        drawn = self.samples.planned(self.rounds)
        return [
            (Round(sampling, queries, self.samples.seeded), count)
            for (sampling, queries), count in in_step(drawn, of_events)
        ]

    def round_at(self, scale: float) -> Round:
        """Returns the first round."""
        ((first, _), *_) = self.rounds_at(scale)
        return first


def _bound_factor(samples: Sampler) -> int:
    microbatches = samples.microbatches
    return 1 if microbatches is None else microbatches.bound_factor


def _rounded_up(scale: float) -> float:
    return float(_DIGITS.create_decimal_from_float(scale))


def queries_at(
    noise_multiplier: float,
    samples: Sampler,
    *,
    l2_norm_clip: float = 1.0,
    gamma: float | None = None,
) -> RoundQueries:
    """Returns queries of gradients alone, with a given noise.

    Guarantee: the noise over the bound on a record is at least
    `noise_multiplier`, in floating point too, whatever the clip is.

    Args:
        noise_multiplier: > 0. It is rounded up to 6 digits.
        samples: How samples are drawn.
        l2_norm_clip: Bound on a record, > 0.
        gamma: See `GaussianSumQuery`.

    >>> import numpy as np
    >>> from keras_dp.sampling import PoissonBatches
    >>> samples = PoissonBatches(np.zeros([100, 2]), sampling_probability=0.1)
    >>> queries_at(1.2, samples, l2_norm_clip=0.1).gradients.noise_multiplier
    1.2...
    """
    factor = _bound_factor(samples)
    scale = _rounded_up(noise_multiplier)
    bound = factor * l2_norm_clip
    stddev = scale * bound
    while bound / stddev > 1 / scale:
        stddev = math.nextafter(stddev, math.inf)
    query = GaussianAverageQuery(
        l2_norm_clip, stddev, summed_records(samples), gamma=gamma
    )
    asked = PrivateRound.of(query)
    event = asked.plan(asked.initial_state(None))
    ((sampling, _),) = samples.planned(1)
    round_ = Round(sampling, asked.ledger_events(event, factor), samples.seeded)
    return RoundQueries(query, query, None, round_)


def _check_signal(
    query: GaussianAverageQuery,
    rounds: int,
    target: PrivacyTarget,
    held: HeldRounds,
) -> None:
    """Raises where noise hides all rounds together.

    Gradients of a real training are shorter than the clip, and differ.
    """
    if signal_of(query, rounds) < _LEAST_SIGNAL:
        reasons = held.why_no_noise_meets(target)
        raise CalibrationError(
            "`target_epsilon`, and the account, if there is one, must leave "
            "room to learn something. Received: "
            f"target_epsilon={target.epsilon!r}: the noise would hide all that "
            f"more rounds say. Raise the target.{reasons}"
        )
