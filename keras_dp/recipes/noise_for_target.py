"""The noise of a training that meets a target on top of what a ledger holds."""

import decimal
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras

from keras_dp.dp_queries import DPQuery, GaussianAverageQuery
from keras_dp.errors import CalibrationError
from keras_dp.ledger import AccountRecord, Round
from keras_dp.optimizers.private_round import PrivateRound
from keras_dp.planning import calibrate_scale
from keras_dp.recipes.held_rounds import HeldRounds
from keras_dp.recipes.noise_for_account import least_within
from keras_dp.recipes.training_data import summed_records
from keras_dp.sampling import Sampler
from keras_dp.spending import PrivacyTarget
from keras_dp.training import (
    PrivateMetric,
    plan_batch_statistics,
)
from keras_dp.training.metrics.batch_statistics import trains_normalization
from keras_dp.training.metrics.side_queries import SideQueries

# The least signal of a training, in standard deviations of its noise.
_LEAST_SIGNAL = 3.0
# Noise is rounded up to so many digits. So it is the same wherever it is
# computed, and what is printed is what runs.
_DIGITS = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)


class RoundQueries(NamedTuple):
    """The queries of every round.

    Attributes:
        gradients: For the optimizer.
        batch_statistics: For `compile`, `None` if none are released.
        round: The round as the ledger will hold it. Of a sampler that makes
            passes over the data, it is the first round.
    """

    gradients: GaussianAverageQuery
    batch_statistics: DPQuery | None
    round: Round


def queries_for(
    target: PrivacyTarget,
    model: keras.Model,
    samples: Sampler,
    epochs: int,
    held: HeldRounds,
    *,
    l2_norm_clip: float,
    gamma: float | None = None,
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
        private_metrics: As in `PrivateModel.compile`.
        batch_statistics: As in `make_private`.
        account: The account that pays, if the ledger has any: it then has room
            for all rounds as well.

    Raises:
        BudgetExceededError: The account does not pay for such rounds.
        CalibrationError: No noise meets the target, or it would hide all that
            is learned.
        PrivateTrainingError: The batch statistics need a model that is built.
    """
    rounds = epochs * samples.rounds_per_epoch
    denominator = summed_records(samples)
    microbatches = samples.microbatches
    factor = 1 if microbatches is None else microbatches.bound_factor
    automatic = batch_statistics == "auto" and trains_normalization(model)

    def queries(
        scale: float,
    ) -> tuple[GaussianAverageQuery, DPQuery | None]:
        statistics: Any = batch_statistics
        if batch_statistics == "auto":
            statistics = None
        if automatic:
            scale, statistics = plan_batch_statistics(
                model,
                noise_multiplier=scale,
                denominator=samples.expected_sample_size,
            )
        stddev = scale * factor * l2_norm_clip
        query = GaussianAverageQuery(
            l2_norm_clip, stddev, denominator, gamma=gamma
        )
        return query, statistics

    def round_for(scale: float) -> Round:
        gradients, statistics = queries(scale)
        side = SideQueries(private_metrics, statistics)
        round_ = PrivateRound.of(gradients, side.queries)
        events = round_.ledger_events(
            round_.plan(round_.initial_state(None)), factor
        )
        return Round(planned[0][0], events, samples.seeded)

    planned = samples.planned(rounds)

    def coming(scale: float) -> list[tuple[Round, int]]:
        events = round_for(scale).queries
        return [(Round(each, events), n) for each, n in planned]

    try:
        scale = calibrate_scale(
            coming,
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
    least = scale = float(_DIGITS.create_decimal_from_float(scale))
    if account is not None:
        scale = least_within(account, round_for, rounds, least=least)
    if scale != least:
        scale = float(_DIGITS.create_decimal_from_float(scale))
    query, statistics = queries(scale)
    _check_signal(query, rounds, target, held)
    return RoundQueries(query, statistics, round_for(scale))


def _check_signal(
    query: GaussianAverageQuery,
    rounds: int,
    target: PrivacyTarget,
    held: HeldRounds,
) -> None:
    """Raises where noise hides all rounds together.

    A sum of averages, all of the norm of the clip and in one direction, is then
    shorter than `_LEAST_SIGNAL` standard deviations of the noise in that
    direction. Gradients of a real training are shorter, and differ.
    """
    noise = query.noise_multiplier / query.denominator
    if math.sqrt(rounds) < _LEAST_SIGNAL * noise:
        reasons = held.why_no_noise_meets(target)
        raise CalibrationError(
            "`target_epsilon`, and the account, if there is one, must leave "
            "room to learn something. Received: "
            f"target_epsilon={target.epsilon!r}: the noise would hide all that "
            f"more rounds say. Raise the target.{reasons}"
        )
