"""The noise of a training that meets a target, or fits an account."""

import dataclasses
import decimal
import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_dp._counted import in_step
from keras_dp.budgets import charge_of
from keras_dp.dp_queries import (
    CorrelatedSumQuery,
    DPQuery,
    GaussianAverageQuery,
    NormalizedQuery,
)
from keras_dp.errors import BudgetExceededError, CalibrationError
from keras_dp.ledger import AccountRecord, Round
from keras_dp.optimizers.private_round import PrivateRound
from keras_dp.planning import calibrate_scale
from keras_dp.planning.calibration import (
    Unreachable,
    least_that_meets,
    poisson_training,
)
from keras_dp.planning.correlated_noise import sum_error
from keras_dp.recipes.settings import RoundQueries, Settings
from keras_dp.recipes.training_data import build_for_records
from keras_dp.training import plan_batch_statistics
from keras_dp.training.metrics.side_queries import (
    SideQueries,
    trains_normalization,
)

# The largest scale that is searched.
_MOST = 1e12
# A signal of fewer standard deviations of its noise is none.
_NO_SIGNAL = 3.0
# The target that is named for a training with room is larger by this factor.
_ROOM = 1.1
# Noise is rounded up to so many digits. So it is the same wherever it is
# computed, and what is printed is what runs.
_DIGITS = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)


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

    `round_for` makes a round from a scale > 0. A larger scale must never cost
    more. The scale that is returned is at least `least`.

    Raises:
        BudgetExceededError: The account does not pay for such rounds, whatever
            their noise.
        CalibrationError: It has no room, whatever their noise.
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


def check_room(settings: Settings) -> Settings:
    """Returns the settings, and raises at once for a target that is too small.

    At one target, one release of the sum over all records has about as much
    signal as any samples and rounds with independent noise, or more. This only
    refuses: the noise of a training is found without it.

    Raises:
        CalibrationError: No noise leaves enough signal.
    """
    if settings.noise not in ("independent", "proven"):
        return settings
    held, population = settings.held, settings.data.population

    def needed(signal: float) -> float:
        release = poisson_training(1.0, population / signal, 1)
        delta = held.target.delta
        return held.replay.plus(release).claim(delta=delta).epsilon

    if needed(_NO_SIGNAL) <= held.target.epsilon:
        return settings
    remedy = ""
    if not held.rounds:  # Beside others, the caller names a target.
        # A real training has less signal: no sample is of all records.
        enough = float(f"{_ROOM * needed(2 * _NO_SIGNAL):.1e}")
        remedy = f" Take target_epsilon={enough:g} or more, or more records."
    with held.explaining():
        raise CalibrationError(
            "`target_epsilon` must leave room to learn something. Received: "
            f"target_epsilon={held.target.epsilon!r} at delta="
            f"{held.target.delta!r} for {population:,} records: whatever the "
            "samples and rounds are, the noise would hide all that they say."
            f"{remedy}"
        )


def choose_noise(settings: Settings) -> Settings:
    """Chooses the least noise that meets the target.

    The noise is found for the events that the ledger would record. If an
    account pays, it then has room for all rounds as well. Private metrics and a
    query of batch statistics keep their own noise; with "auto" the statistics
    get their share of the noise that is found.

    Raises:
        CalibrationError: No noise meets the target, or it would hide all that
            is learned.
    """
    given = settings.batch_statistics
    if given == "auto" and not trains_normalization(settings.model):
        settings = dataclasses.replace(settings, batch_statistics=None)
    _check_strategy(settings)
    held, account = settings.held, settings.account
    more = ""
    if settings.compiled.get("private_metrics") or isinstance(given, DPQuery):
        more = (
            " Private metrics and batch statistics keep the noise that they "
            "have: give them more."
        )
    with held.explaining(more):
        scale = calibrate_scale(
            functools.partial(rounds_at, settings), **held.terms
        )
    least = scale = rounded_scale(scale)
    if account is not None:
        scale = least_within(
            account,
            lambda scale: rounds_at(settings, scale)[0][0],
            settings.rounds,
            least=least,
        )
    if scale != least:
        scale = rounded_scale(scale)
    settings = with_noise(settings, scale)
    value = f"multiplier {settings.queries.noise_multiplier:.6g}"
    statistics = settings.queries.batch_statistics
    if isinstance(statistics, GaussianAverageQuery):
        value += f", of batch statistics {statistics.noise_multiplier:.4g}"
    settings = settings.with_choice(
        "noise", value, "the least that meets the target"
    )
    # Gradients of a real training are shorter than the clip, and differ.
    if settings.signal < _NO_SIGNAL:
        with held.explaining():
            raise CalibrationError(
                "`target_epsilon`, and the account, if there is one, must "
                "leave room to learn something. Received: target_epsilon="
                f"{held.target.epsilon!r}: the noise would hide all that more "
                "rounds say. Raise the target."
            )
    return settings


def _check_strategy(settings: Settings) -> None:
    if settings.strategy is None:
        return
    if settings.account is not None:
        raise ValueError(
            "`noise` must be independent where an account pays: it has one "
            "price for all rounds. Received: the account "
            f'{settings.account.account.name!r}. Take noise="independent".'
        )
    if settings.batch_statistics == "auto":
        raise ValueError(
            "`noise` must be independent with batch statistics. Received: "
            f"noise={settings.noise!r}. replace_batch_normalization does "
            "without the statistics."
        )


def with_noise(settings: Settings, scale: float) -> Settings:
    """Returns settings with the queries that add noise of some scale.

    Guarantee: the noise over the bound on a record is at least `scale`, in
    floating point too, whatever the clip is.
    """
    strategy, rounds = settings.strategy, settings.rounds
    specs = []
    if strategy is not None:
        build_for_records(settings.model, settings.samples)
        specs = [
            tf.TensorSpec(each.shape, each.dtype)
            for each in settings.model.trainable_variables
        ]
    query, released, statistics = _queries_at(settings, scale, specs)
    if strategy is not None:
        # As much noise in the sums over rounds.
        share = sum_error(strategy, rounds) / math.sqrt((rounds + 1) / 2)
        query = GaussianAverageQuery(
            query.l2_norm_clip, share * query.sum_stddev, query.denominator
        )
    round_ = rounds_at(settings, scale)[0][0]
    queries = RoundQueries(query, released, statistics, round_)
    return dataclasses.replace(settings, queries=queries)


def rounds_at(settings: Settings, scale: float) -> list[tuple[Round, int]]:
    """Returns all rounds as the ledger would record them."""
    # The events do not depend on the shapes of a record.
    _, released, statistics = _queries_at(settings, scale, tf.TensorSpec([]))
    rounds = settings.rounds
    side = SideQueries(settings.compiled.get("private_metrics"), statistics)
    round_ = PrivateRound.of(released, side.queries)
    state = round_.initial_state(None)
    events = round_.coming_events(state) or [(round_.plan(state), rounds)]
    samples = settings.samples
    factor = samples.rows_of_record.bound_factor
    of_events = [
        (round_.ledger_events(event, factor), count) for event, count in events
    ]
    drawn = samples.planned(rounds)
    return [
        (Round(sampling, queries, samples.seeded), count)
        for (sampling, queries), count in in_step(drawn, of_events)
    ]


def _queries_at(
    settings: Settings, scale: float, specs: Any
) -> tuple[GaussianAverageQuery, DPQuery, Any]:
    """Returns the query of independent noise, what is released, and statistics.

    `specs` are the shapes and dtypes of one record.
    """
    samples, statistics = settings.samples, settings.batch_statistics
    if statistics == "auto":
        scale, statistics = plan_batch_statistics(
            settings.model,
            noise_multiplier=scale,
            denominator=samples.expected_sample_size,
        )
    clip, strategy = settings.l2_norm_clip, settings.strategy
    bound = samples.rows_of_record.bound_factor * clip
    stddev = scale * bound
    while bound / stddev > 1 / scale:
        stddev = math.nextafter(stddev, math.inf)
    query = GaussianAverageQuery(
        clip,
        stddev,
        round(samples.expected_records, 6),  # As a person would type it.
        gamma=settings.gamma,
        precision="proven" if settings.noise == "proven" else "assumed",
    )
    if strategy is None:
        return query, query, statistics
    total = CorrelatedSumQuery(
        strategy, clip, query.noise_multiplier, settings.rounds, specs
    )
    return query, NormalizedQuery(total, query.denominator), statistics


def rounded_scale(scale: float) -> float:
    """Returns a scale of noise as it runs and is printed: rounded up."""
    return float(_DIGITS.create_decimal_from_float(scale))
