"""Disjoint batches of shuffled passes over the data."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_dp._nests import Nest
from keras_dp._override import override
from keras_dp.ledger import DisjointBatches
from keras_dp.sampling.random_rows import random_places
from keras_dp.sampling.random_words import Words
from keras_dp.sampling.record_source import RandomAccessSource
from keras_dp.sampling.sampler import Draw, Pass, Sampler


class ShuffledBatches(Sampler):
    """Shuffles the data anew for each pass, and cuts it into disjoint batches.

    Iterating gives physical batches without end, pass after pass. A pass is an
    epoch of `fit`. If `batch_size` does not divide the number of records, the
    last batch of each pass is smaller, and padded.

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
    rounds reveals it. Other arguments are those of `PoissonBatches`;
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

    rounds_per_pass: int

    def __init__(
        self,
        data: Nest | RandomAccessSource,
        *,
        batch_size: int,
        physical_batch_size: int | None = None,
        map: Callable[..., Any] | None = None,  # noqa: A002 - as in tf.data.
        views: int = 1,
        seed: int | None = None,
    ) -> None:
        super().__init__(data, map=map, views=views, seed=seed)
        self.batch_size = self._checked_size(batch_size=batch_size)
        self.rounds_per_pass = -(-self.population_size // self.batch_size)
        self._set_sizes(
            physical_batch_size,
            None,
            default=(self.batch_size, self.rounds_per_pass),
        )

    @property
    @override
    def expected_sample_size(self) -> float:
        return float(self.batch_size)

    @override
    def sampling_of(self, of: Pass) -> DisjointBatches:
        return DisjointBatches(of.epoch_id, drawn_by_library=True)

    def __repr__(self) -> str:
        return (
            f"<ShuffledBatches of {self.population_size:,} records, "
            f"batch_size={self.batch_size}, "
            f"physical_batch_size={self.physical_batch_size}>"
        )

    @override
    def _draws(self, words: Words, places: Words) -> Iterator[Draw]:
        of = Pass.new()
        population, size = self.population_size, self.physical_batch_size
        while True:
            order = random_places(population, population, words)
            for number in range(self.rounds_per_pass):
                start = number * self.batch_size
                batch = order[start : start + self.batch_size]
                rows = np.full(-(-len(batch) // size) * size, -1, np.int64)
                rows[: len(batch)] = batch
                of = of._replace(rounds_left=self.rounds_per_pass - 1 - number)
                yield Draw(rows.reshape(-1, size), of)
            of = of._replace(number=of.number + 1)
