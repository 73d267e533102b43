"""Samples of fixed size, drawn anew for every round."""

import functools
from collections.abc import Iterator
from typing import Unpack

import numpy as np

from keras_dp._nests import Nest
from keras_dp.ledger import FixedSizeWithoutReplacement
from keras_dp.sampling.draw import Draw, Integers, checked_size
from keras_dp.sampling.random_words import Words, random_subset
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

    A chosen `seed` has no effect outside of `reproducible()`. The number of
    records is public: the event holds it. Other arguments are those of
    `SamplerOptions`; `physical_batch_size` is `sample_size` by default.

    Attributes: those of `Sampler`, and
        sample_size: Number of records in a sample, in [1, N].

    Raises:
        TypeError: An argument is of a wrong type, as for `PoissonBatches`.
        ValueError: A number is out of its range, or the data does not fit, as
            for `PoissonBatches`.

    >>> import numpy as np
    >>> x, y = np.zeros([1000, 28, 28]), np.zeros([1000], np.int32)
    >>> batches = FixedSizeBatches((x, y), sample_size=32)
    >>> batches.sampling_event
    FixedSizeWithoutReplacement(sample_size=32, population_size=1000, ...)
    >>> (x, y), mask, ends_sample = next(iter(batches))
    >>> x.shape, bool(mask.all()), ends_sample, len(batches)
    ((32, 28, 28), True, True, 31)
    """

    _shown = ("sample_size",)

    def __init__(
        self,
        data: Nest | RandomAccessSource,
        *,
        sample_size: int,
        **options: Unpack[SamplerOptions],
    ) -> None:
        law = functools.partial(_of_size, sample_size=sample_size)
        super().__init__(data, law, **options)
        self.sample_size = int(sample_size)


def _of_size(count: int, sample_size: int) -> Draw:
    size = checked_size(count, sample_size=sample_size)
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
