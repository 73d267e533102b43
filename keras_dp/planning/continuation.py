"""Rounds that continue a ledger, with the same noise or with other noise."""

import dataclasses
import decimal
from typing import NamedTuple

from keras_dp.accountants.normalize.rounds import LedgerLike, counted_rounds
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    DiscreteGaussianSum,
    DisjointBatches,
    EncodedSum,
    FixedSizeWithoutReplacement,
    FixedSizeWithReplacement,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    RandomAllocation,
    Round,
    SamplingEvent,
    SumQueryEvent,
    ThresholdedSum,
    TreeSum,
    TruncatedPoissonSampling,
    UnverifiedSampling,
)

# Noise is rounded up to so many digits, so that what is printed is enough.
_DIGITS = decimal.Context(prec=4, rounding=decimal.ROUND_CEILING)


class Continuation(NamedTuple):
    """Rounds that would continue a ledger.

    Attributes:
        round: One of the rounds. An epoch of disjoint batches counts as one
            round, in which every record takes part once.
        rounds_per_epoch: The expected number of rounds in one pass over the
            data. None if it is not known.
        is_epoch: Whether `round` represents an epoch of disjoint batches.
    """

    round: Round
    rounds_per_epoch: int | None
    is_epoch: bool


def continuation(ledger: LedgerLike) -> Continuation:
    """Returns rounds that are like the last round of a ledger.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).

    Raises:
        ValueError: The ledger holds no round.
        UnsupportedEventError: The last round is a step of a tree. The cost of
            the next step depends on when the tree restarts.

    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> continuation([(step, 500)]).rounds_per_epoch
    100
    """
    pairs = tuple(counted_rounds(ledger))
    if not pairs:
        raise ValueError(
            "`ledger` must hold at least one round. Received: a ledger without "
            "rounds. Plan a first training with `keras-dp plan`."
        )
    last, _ = pairs[-1]
    if any(isinstance(query, TreeSum) for query in last.queries):
        raise UnsupportedEventError(
            "`ledger` must not end with a step of a tree, because the cost of "
            "the next step depends on when the tree restarts. "
            f"Received: {last.queries!r} in the last round. Use "
            "`keras_dp.planning.rounds_left` with a round of your own."
        )
    if isinstance(last.sampling, RandomAllocation):
        # The id is one that no round has. Rounds beyond an epoch begin others.
        sampling = dataclasses.replace(last.sampling, epoch_id="to come")
        last = dataclasses.replace(last, sampling=sampling)
        return Continuation(last, sampling.batches, is_epoch=False)
    if isinstance(last.sampling, DisjointBatches):
        last = dataclasses.replace(last, sampling=UnverifiedSampling())
        return Continuation(last, 1, is_epoch=True)
    return Continuation(last, _per_epoch(last.sampling), is_epoch=False)


def with_noise(event: Round, factor: float) -> Round:
    """Returns a round whose noise is `factor` times as large.

    The noise is rounded up to four digits. Thresholds grow in proportion to
    the noise.

    Args:
        event: The round.
        factor: > 0.

    Raises:
        UnsupportedEventError: A release is not a sum with independent noise.

    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> with_noise(step, 1.23456).queries[0].noise_stddev
    4.939
    """
    queries = tuple(_with_noise(query, factor) for query in event.queries)
    return dataclasses.replace(event, queries=queries)


def _per_epoch(sampling: SamplingEvent) -> int | None:
    match sampling:
        case FullDataset():
            return 1
        case PoissonSampling() | TruncatedPoissonSampling():
            return max(1, round(1 / sampling.probability))
        case FixedSizeWithoutReplacement() | FixedSizeWithReplacement():
            share = sampling.population_size / sampling.sample_size
            return max(1, round(share))
    return None


def _with_noise(query: SumQueryEvent, factor: float) -> SumQueryEvent:
    match query:
        case GaussianSum():
            stddev = _rounded_up(query.noise_stddev * factor)
            return dataclasses.replace(query, noise_stddev=stddev)
        case DiscreteGaussianSum():
            scale = _rounded_up(query.noise_scale * factor)
            return dataclasses.replace(query, noise_scale=scale)
        case ThresholdedSum():
            stddev = _rounded_up(query.noise_stddev * factor)
            threshold = query.threshold * (stddev / query.noise_stddev)
            return dataclasses.replace(
                query, noise_stddev=stddev, threshold=threshold
            )
        case EncodedSum():
            scale = _rounded_up(query.noise.scale * factor)
            noise = dataclasses.replace(query.noise, scale=scale)
            return dataclasses.replace(query, noise=noise)
    raise UnsupportedEventError(
        "`event` must hold sums with independent noise in each round. "
        f"Received: {query!r}. Use "
        "`keras_dp.planning.calibrate_scale` with a ledger of your own."
    )


def _rounded_up(noise: float) -> float:
    return float(_DIGITS.create_decimal_from_float(noise))
