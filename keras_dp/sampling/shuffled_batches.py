"""Disjoint batches of shuffled passes over the data."""

import functools
from collections.abc import Iterator
from typing import Unpack

import numpy as np

from keras_dp._nests import Nest
from keras_dp.ledger import DisjointBatches
from keras_dp.sampling.draw import Draw, Integers, Pass, checked_size
from keras_dp.sampling.random_rows import random_places
from keras_dp.sampling.random_words import Words
from keras_dp.sampling.record_source import RandomAccessSource
from keras_dp.sampling.sampler import Sampler, SamplerOptions


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
    Several replicas of one worker share a batch. A chosen `seed` has no effect
    outside of `reproducible()`. The number of records is public: the number of
    rounds reveals it. Other arguments are those of `SamplerOptions`;
    `physical_batch_size` is `batch_size` by default.

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

    _shown = ("batch_size",)

    def __init__(
        self,
        data: Nest | RandomAccessSource,
        *,
        batch_size: int,
        **options: Unpack[SamplerOptions],
    ) -> None:
        law = functools.partial(_in_passes, batch_size=batch_size)
        super().__init__(data, law, **options)
        self.batch_size = int(batch_size)


def _in_passes(count: int, batch_size: int) -> Draw:
    size = checked_size(count, batch_size=batch_size)
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
