"""Batches of passes in which each record picks its batches at random."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_dp import _check
from keras_dp._override import override
from keras_dp.ledger import RandomAllocation
from keras_dp.sampling.layouts import default_physical_batch_size
from keras_dp.sampling.nests import Nest
from keras_dp.sampling.random_rows import in_random_rows
from keras_dp.sampling.random_subset import random_subsets
from keras_dp.sampling.random_words import Words
from keras_dp.sampling.record_source import RandomAccessSource
from keras_dp.sampling.sampler import Draw, Pass, Sampler


class AllocatedBatches(Sampler):
    """Lets each record pick its batches in each pass, at random.

    Iterating gives physical batches without end. A pass over the data has
    `batches` samples, and is an epoch of `fit`. Every record takes part in
    `batches_per_record` samples of a pass, one by default, as with shuffled
    batches. But as with Poisson samples, nobody knows in which. The sizes of
    samples are random and secret. A sample takes one or more physical batches,
    padded in random rows, as for `PoissonBatches`.

    Guarantee: in each pass, each record is in `batches_per_record` samples. All
    sets of that many samples are exactly equally likely, independently of all
    other records and passes; the randomness is from the operating system's
    cryptographic generator. Adding or removing a record leaves the others in
    their samples; and in their rows too, unless the number of physical batches
    changes (see `in_random_rows`). Each iterator begins a new pass, with an
    `epoch_id` of its own. A pass that is stopped early costs as much as a whole
    one.

    `Fourier` is the accountant for these samples, for Gaussian noise under
    `add_or_remove_one` and `zero_out`. The epsilon is mostly a little less than
    that of Poisson samples with probability `batches_per_record / batches` and
    the same noise. `batches_per_record=k` costs about as much as k passes of
    `batches / k` samples in which each record picks one. Microbatches, and
    shards for the workers of a cluster, are not available. A chosen `seed` has
    no effect outside of `reproducible()`. Other arguments are those of
    `PoissonBatches`.

    Attributes: those of `Sampler`, and
        batches: Number of samples in a pass, >= 1.
        batches_per_record: Number of samples of a pass in which each record is,
            in [1, `batches`].

    >>> batches = AllocatedBatches(np.arange(1000), batches=20)
    >>> batches.expected_sample_size, batches.physical_batch_size
    (50.0, 80)
    >>> samples = iter(batches)
    >>> one_pass = [next(samples) for _ in range(20)]
    >>> sum(int(batch.mask.sum()) for batch in one_pass)
    1000
    """

    rounds_per_pass: int

    def __init__(
        self,
        data: Nest | RandomAccessSource,
        *,
        batches: int,
        batches_per_record: int = 1,
        physical_batch_size: int | None = None,
        map: Callable[..., Any] | None = None,  # noqa: A002 - as in tf.data.
        views: int = 1,
        seed: int | None = None,
    ) -> None:
        super().__init__(data, map=map, views=views, seed=seed)
        _check.integer_at_least(
            1, batches=batches, batches_per_record=batches_per_record
        )
        if batches_per_record > batches:
            raise ValueError(
                f"`batches_per_record` must be at most batches={batches!r}: a "
                "record is in a batch once. Received: "
                f"batches_per_record={batches_per_record!r}."
            )
        self.batches = int(batches)
        self.batches_per_record = int(batches_per_record)
        self.rounds_per_pass = self.batches
        size = default_physical_batch_size(
            self.population_size, self.batches_per_record / self.batches
        )
        self._set_sizes(physical_batch_size, None, default=(size, self.batches))

    @property
    @override
    def expected_sample_size(self) -> float:
        return self.population_size * self.batches_per_record / self.batches

    @override
    def sampling_of(self, of: Pass) -> RandomAllocation:
        return RandomAllocation(
            of.epoch_id,
            self.batches,
            self.batches_per_record,
            drawn_by_library=True,
        )

    def __repr__(self) -> str:
        return (
            f"<AllocatedBatches of {self.population_size:,} records, "
            f"batches={self.batches}, "
            f"batches_per_record={self.batches_per_record}, "
            f"{self.expected_sample_size:.6g} expected in a sample, "
            f"physical_batch_size={self.physical_batch_size}>"
        )

    @override
    def _draws(self, words: Words, places: Words) -> Iterator[Draw]:
        of = Pass.new()
        while True:
            picked = random_subsets(
                self.population_size,
                self.batches_per_record,
                self.batches,
                words,
            ).ravel()
            order = np.argsort(picked, kind="stable") // self.batches_per_record
            counts = np.bincount(picked, minlength=self.batches)
            ends = np.cumsum(counts)
            for number, (count, end) in enumerate(
                zip(counts.tolist(), ends.tolist(), strict=True)
            ):
                rows = in_random_rows(
                    order[end - count : end, np.newaxis],
                    self.physical_batch_size,
                    places,
                )
                of = of._replace(rounds_left=self.batches - 1 - number)
                yield Draw(rows, of)
            of = of._replace(number=of.number + 1)
