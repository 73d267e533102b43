"""Formatted ledgers of TensorFlow Privacy: to rounds, and back.

TensorFlow Privacy up to version 0.5 kept a `PrivacyLedger`, whose
`get_formatted_ledger` returned a list of `SampleEntry`. The classes below have
the names and the fields of theirs.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from keras_dp import _check
from keras_dp.accountants.normalize.rounds import LedgerLike, counted_rounds
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    CountedRound,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
    SumQueryEvent,
)


class GaussianSumQueryEntry(NamedTuple):
    """One Gaussian sum over a sample.

    Attributes:
        l2_norm_bound: Upper bound on the L2 norm of one record.
        noise_stddev: Standard deviation of the noise on the sum.
    """

    l2_norm_bound: float
    noise_stddev: float


class SampleEntry(NamedTuple):
    """One sample, and the sums over it.

    Attributes:
        population_size: Records in the data set.
        selection_probability: Chance of a record to be in the sample.
        queries: The sums.
    """

    population_size: float
    selection_probability: float
    queries: Sequence[GaussianSumQueryEntry]


def from_formatted_ledger(
    entries: Iterable[tuple[float, float, Iterable[tuple[float, float]]]],
) -> tuple[CountedRound, ...]:
    """Returns the rounds of a formatted ledger of TensorFlow Privacy.

    Bounds and noises are taken as they were written, which was in float32.
    The sampling is Poisson sampling as *declared*: TensorFlow Privacy did not
    draw it, and recorded the probability that it was told. Where the batches
    came from a shuffled data set, the rounds claim an amplification that there
    was not.

    Args:
        entries: `SampleEntry` of TensorFlow Privacy or of this module, or
            tuples with the same fields.

    Returns:
        Pairs of a round and its count, equal neighbours together. Samples
        without queries released nothing, and are left out.

    Raises:
        ValueError: A number is not a possible one.
        TypeError: The entries have other fields.

    >>> sums = [GaussianSumQueryEntry(1.0, 4.0)]
    >>> entries = [SampleEntry(60_000.0, 0.25, sums)] * 100
    >>> ((found, count),) = from_formatted_ledger(entries)
    >>> found.sampling, count
    (PoissonSampling(probability=0.25, drawn_by_library=False), 100)
    """
    merged: list[CountedRound] = []
    for entry in entries:
        queries = _queries(entry)
        if not queries:
            continue
        found = Round(PoissonSampling(float(entry[1])), queries)
        if merged and merged[-1].round == found:
            merged[-1] = CountedRound(found, merged[-1].count + 1)
        else:
            merged.append(CountedRound(found, 1))
    return tuple(merged)


def to_formatted_ledger(
    ledger: LedgerLike, *, population_size: int
) -> list[SampleEntry]:
    """Returns a formatted ledger of TensorFlow Privacy, an entry a round.

    Their accountants take the sampling to be Poisson sampling, and a record to
    be added or removed. Full data sets have a selection probability of 1.
    Names, seeds, and who drew the samples are lost.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).
        population_size: Records in the data set, >= 1. It becomes public.

    Raises:
        UnsupportedEventError: A round is neither a Poisson sample nor the full
            data set, or holds another release than Gaussian sums.

    >>> step = Round(PoissonSampling(0.25), (GaussianSum("all", 1.0, 4.0),))
    >>> entry, _ = to_formatted_ledger([(step, 2)], population_size=60_000)
    >>> entry.selection_probability, entry.queries
    (0.25, [GaussianSumQueryEntry(l2_norm_bound=1.0, noise_stddev=4.0)])
    """
    _check.integer_at_least(1, population_size=population_size)
    found: list[SampleEntry] = []
    for each, count in counted_rounds(ledger):
        found += count * [_entry(each, float(population_size))]
    return found


def _queries(
    entry: tuple[float, float, Iterable[tuple[float, float]]],
) -> tuple[SumQueryEvent, ...]:
    try:
        _, _, queries = entry
        pairs = [(float(bound), float(stddev)) for bound, stddev in queries]
    except (TypeError, ValueError) as error:
        raise TypeError(
            "`entries` must be samples of population size, selection "
            "probability and queries, and queries pairs of bound and stddev. "
            f"Received: {entry!r}."
        ) from error
    return tuple(
        GaussianSum(f"sum/{index}", bound, stddev)
        for index, (bound, stddev) in enumerate(pairs)
    )


def _entry(each: Round, population_size: float) -> SampleEntry:
    queries = [
        GaussianSumQueryEntry(query.l2_norm_bound, query.noise_stddev)
        for query in each.queries
        if isinstance(query, GaussianSum)
    ]
    probability = math.nan
    if isinstance(each.sampling, PoissonSampling):
        probability = each.sampling.probability
    elif isinstance(each.sampling, FullDataset):
        probability = 1.0
    if len(queries) < len(each.queries) or math.isnan(probability):
        raise UnsupportedEventError(
            "`ledger` must hold Gaussian sums over Poisson samples or the full "
            "data set: a formatted ledger has no words for others. Received: "
            f"{each!r}."
        )
    return SampleEntry(population_size, probability, queries)
