"""Converts formatted ledgers of TensorFlow Privacy to rounds, and back.

TensorFlow Privacy up to version 0.5 had a `PrivacyLedger`, whose
`get_formatted_ledger` returned a list of `SampleEntry`. The classes below have
the same names and fields.
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
        l2_norm_bound: The upper bound on the L2 norm of one record.
        noise_stddev: The standard deviation of the noise on the sum, in the
            same unit.
    """

    l2_norm_bound: float
    noise_stddev: float


class SampleEntry(NamedTuple):
    """One sample, and the sums over it.

    Attributes:
        population_size: The number of records in the data set.
        selection_probability: The probability of each record to be in the
            sample.
        queries: The sums over the sample.
    """

    population_size: float
    selection_probability: float
    queries: Sequence[GaussianSumQueryEntry]


def from_formatted_ledger(
    entries: Iterable[tuple[float, float, Iterable[tuple[float, float]]]],
) -> tuple[CountedRound, ...]:
    """Returns the rounds of a formatted ledger of TensorFlow Privacy.

    Bounds and noise keep the values that were written, which had the precision
    of float32. The sampling becomes *declared* Poisson sampling: TensorFlow
    Privacy did not draw the samples, and recorded the probability that its
    caller stated. If the batches came from a shuffled data set, the rounds
    claim an amplification that is not true.

    Args:
        entries: `SampleEntry` of TensorFlow Privacy or of this module, or
            tuples with the same fields.

    Returns:
        Pairs of a round and its count; equal rounds in a row are counted
        together. Samples without queries released nothing, and are left out.

    Raises:
        TypeError: The entries have other fields.
        ValueError: A number is out of its range.

    >>> sums = [GaussianSumQueryEntry(1.0, 4.0)]
    >>> entries = [SampleEntry(60_000.0, 0.25, sums)] * 100
    >>> ((found, count),) = from_formatted_ledger(entries)
    >>> found.sampling, count
    (PoissonSampling(probability=0.25, drawn_by_library=False), 100)
    """
    merged: list[CountedRound] = []
    for entry in entries:
        probability, queries = _sample(entry)
        if not queries:
            continue
        found = Round(PoissonSampling(probability), queries)
        if merged and merged[-1].round == found:
            merged[-1] = CountedRound(found, merged[-1].count + 1)
        else:
            merged.append(CountedRound(found, 1))
    return tuple(merged)


def to_formatted_ledger(
    ledger: LedgerLike, *, population_size: int
) -> list[SampleEntry]:
    """Returns a formatted ledger of TensorFlow Privacy, one entry per round.

    The accountants of TensorFlow Privacy assume Poisson sampling, and that one
    record is added or removed. Full data sets have a selection probability
    of 1. Names and seeds are lost, and also who drew the samples. The privacy
    unit and its `rows_per_unit` are lost too: epsilon of a formatted ledger is
    for one record.

    Args:
        ledger: An object with `rounds`, such as a `PrivacyLedger`, or pairs
            (Round, count).
        population_size: The number of records in the data set, >= 1. It becomes
            public.

    Raises:
        UnsupportedEventError: A sample is neither a Poisson sample nor the full
            data set, or a round releases something else than Gaussian sums.
        ValueError: `population_size` is below 1.

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


def _sample(
    entry: tuple[float, float, Iterable[tuple[float, float]]],
) -> tuple[float, tuple[SumQueryEvent, ...]]:
    """Returns the sampling probability and the sums of an entry."""
    try:
        _, selection_probability, queries = entry
        probability = float(selection_probability)
        pairs = [(float(bound), float(stddev)) for bound, stddev in queries]
    except (TypeError, ValueError) as error:
        raise TypeError(
            "`entries` must be samples of population size, selection "
            "probability and queries, and queries pairs of bound and stddev. "
            f"Received: {entry!r}. Use SampleEntry and GaussianSumQueryEntry."
        ) from error
    return probability, tuple(
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
            "data set, because a formatted ledger can hold nothing else. "
            f"Received: {each!r}. Use to_dp_event, or replay the ledger with "
            "`keras_dp.accountants`."
        )
    return SampleEntry(population_size, probability, queries)
