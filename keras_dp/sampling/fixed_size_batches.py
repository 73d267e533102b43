"""Samples of fixed size: drawn anew for every round, or cut from passes."""

import functools
from collections.abc import Iterator
from typing import Unpack

import numpy as np

from keras_dp import _check
from keras_dp._nests import Nest
from keras_dp.ledger import DisjointBatches, FixedSizeWithoutReplacement
from keras_dp.sampling.draw import Draw, Integers, Pass
from keras_dp.sampling.random_words import Words, random_places, random_subset
from keras_dp.sampling.record_source import RandomAccessSource
from keras_dp.sampling.sampler import Sampler, SamplerOptions


class FixedSizeBatches(Sampler):
    """Draws a uniformly random subset of fixed size, anew for every round.

    Iterating gives physical batches without end. By default a sample is one
    physical batch, without padding. Records are in random rows.

    Guarantee: in each round, all subsets of `sample_size` records are exactly
    equally likely, whatever was drawn before; the randomness is from the
    operating system's cryptographic generator. Replacing a record by another
    leaves all others in their rows; see `in_random_rows`.

    Accountants have a bound for these samples under `replace_one` only. There,
    one record moves a sum by twice its bound. So the epsilon is larger than
    that of `PoissonBatches` with as many records on average. In return, no
    computation is spent on padding. Microbatches, and shards for the workers of
    a cluster, are not available. Several replicas of one worker share a sample.

    The number of records is public: the event holds it. Other arguments are
    those of `SamplerOptions`; by default, `physical_batch_size` is
    `sample_size`.

    Attributes: those of `Sampler`, and
        sample_size: Number of records in a sample, in [1, N].

    >>> import numpy as np
    >>> x, y = np.zeros([1000, 28, 28]), np.zeros([1000], np.int32)
    >>> batches = FixedSizeBatches((x, y), sample_size=32)
    >>> batches.sampling_event
    FixedSizeWithoutReplacement(sample_size=32, population_size=1000, ...)
    >>> (x, y), mask, ends_sample = next(iter(batches))
    >>> x.shape, bool(mask.all()), ends_sample, len(batches)
    ((32, 28, 28), True, True, 31)
    """

    def __init__(
        self,
        data: Nest | RandomAccessSource,
        *,
        sample_size: int,
        **options: Unpack[SamplerOptions],
    ) -> None:
        arguments = {"sample_size": sample_size}
        super().__init__(data, _of_size, arguments, **options)
        self.sample_size = int(sample_size)


def _of_size(count: int, sample_size: int) -> Draw:
    size = _checked_size(count, sample_size=sample_size)
    return Draw(
        count,
        FixedSizeWithoutReplacement(size, count, drawn_by_library=True),
        functools.partial(_subsets, size, count),
        expected_size=float(size),
        most_rows=size,
        rounds_per_epoch=max(1, round(count / size)),
    )


def _subsets(size: int, count: int, words: Words) -> Iterator[Integers]:
    while True:
        yield random_subset(size, count, words)[:, np.newaxis]


class ShuffledBatches(Sampler):
    """Shuffles the data anew for each pass, and cuts it into disjoint batches.

    Iterating gives physical batches without end, pass after pass. By default a
    pass is an epoch of `fit`. If `batch_size` does not divide the number of
    records, the last batch of each pass is smaller, and padded.

    Guarantee: in a pass, each record is in exactly one batch. Each iterator
    begins a new pass, with an `epoch_id` of its own. So a training that is
    stopped, or that continues after a crash, never takes a record twice under
    one id. Replacing a record leaves all others in their batches and rows.

    There is no amplification: accountants do not use the random order. A whole
    pass costs what one round without sampling costs, under `zero_out` and
    `replace_one`. (Adding a record would move other records to other batches.)
    Use this sampler for correlated noise (`CorrelatedSumQuery`), and for few
    passes with little noise. `PoissonBatches` needs less noise in most other
    cases.

    Microbatches, and shards for the workers of a cluster, are not available.
    Several replicas of one worker share a batch. The number of records is
    public: the number of rounds reveals it. Other arguments are those of
    `SamplerOptions`; `physical_batch_size` is `batch_size` by default.

    Attributes: those of `Sampler`, and
        batch_size: Number of records in a batch, except the last of a pass, in
            [1, N].

    >>> batches = ShuffledBatches(np.arange(10), batch_size=4)
    >>> samples = iter(batches)
    >>> one_pass = [next(samples) for _ in range(batches.rounds_per_pass)]
    >>> [int(batch.mask.sum()) for batch in one_pass]
    [4, 4, 2]
    >>> sorted(int(x) for batch in one_pass for x in batch.records[batch.mask])
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(
        self,
        data: Nest | RandomAccessSource,
        *,
        batch_size: int,
        **options: Unpack[SamplerOptions],
    ) -> None:
        arguments = {"batch_size": batch_size}
        super().__init__(data, _in_passes, arguments, **options)
        self.batch_size = int(batch_size)


def _in_passes(count: int, batch_size: int) -> Draw:
    size = _checked_size(count, batch_size=batch_size)
    rounds = -(-count // size)
    return Draw(
        count,
        DisjointBatches(Pass.new().epoch_id, drawn_by_library=True),
        functools.partial(_shuffled, count, size),
        expected_size=float(size),
        most_rows=size,
        rounds_per_epoch=rounds,
        rounds_per_pass=rounds,
        placed=_in_order,
    )


def _shuffled(count: int, size: int, words: Words) -> Iterator[Integers]:
    while True:
        order = random_places(count, count, words)[:, np.newaxis]
        for start in range(0, count, size):
            yield order[start : start + size]


def _in_order(
    units: Integers, physical_batch_size: int, words: Words
) -> Integers:
    """Returns rows in the order of the records, which is random already."""
    batches = -(-len(units) // physical_batch_size)
    rows = np.full(batches * physical_batch_size, -1, np.int64)
    rows[: len(units)] = units[:, 0]
    return rows.reshape(batches, physical_batch_size)


def _checked_size(population: int, **named: int) -> int:
    _check.integer_at_least(1, **named)
    ((name, size),) = named.items()
    if size > population:
        raise ValueError(
            f"`{name}` must be at most {population}, the number "
            f"of records. Received: {name}={size!r}."
        )
    return int(size)
