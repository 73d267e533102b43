"""Batches of passes in which each record picks its batches at random."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from typing_extensions import override

from keras_dp import _check, _peers
from keras_dp.ledger import RandomAllocation
from keras_dp.sampling.layouts import default_physical_batch_size
from keras_dp.sampling.nests import Nest
from keras_dp.sampling.random_rows import in_random_rows
from keras_dp.sampling.random_subset import random_subsets
from keras_dp.sampling.random_words import Words
from keras_dp.sampling.record_source import RandomAccessSource
from keras_dp.sampling.sampler import Draw, Pass, Sampler


class AllocatedBatches(Sampler):
    """Lets each record pick batches of each pass, at random.

    Iterating gives physical batches without end, pass after pass of `batches`
    samples each; a pass is an epoch of `fit`. Every record takes part in
    `batches_per_record` of them, in one by default, as with shuffled batches,
    and the rounds are as good as secret, as with Poisson samples. Sizes of
    samples are random and secret, and a sample takes physical batches as for
    `PoissonBatches`, padded in random rows.

    Guarantee: in each pass each record is in `batches_per_record` batches, all
    such sets of batches with the same chance, independently of all other
    records and passes, exactly, by the operating system's cryptographic
    generator. Adding or removing a record leaves the others in their batches,
    and in their rows as long as the number of physical batches stays; see
    `in_random_rows`. Each iterator begins a pass of its own, whose `epoch_id`
    nothing else has; a pass that is stopped costs the whole of it.

    There is a price for Gaussian noise, under the relations "add or remove
    one" and "zero out", from `Fourier`: mostly a little less than that of
    Poisson samples with probability `batches_per_record / batches`, for the
    same noise, and about that of as many passes of fewer batches in which each
    record picks one. There are no microbatches here, and no shards for the
    workers of a cluster. A chosen `seed` has no effect outside of
    `reproducible()`, as for `PoissonBatches`.

    Attributes: those of `Sampler`, and
        batches: Samples of a pass.
        batches_per_record: In how many of them each record is.

    >>> batches = AllocatedBatches(np.arange(1000), batches=20)
    >>> batches.expected_sample_size, batches.physical_batch_size
    (50.0, 80)
    >>> samples = iter(batches)
    >>> one_pass = [next(samples) for _ in range(20)]
    >>> sum(int(batch.mask.sum()) for batch in one_pass)
    1000
    """

    rounds_per_pass: int

    @_peers.explains(_peers.ALLOCATED)
    def __init__(
        self,
        data: Nest | RandomAccessSource,
        *,
        batches: int,
        batches_per_record: int = 1,
        physical_batch_size: int | None = None,
        map: Callable[..., Any] | None = None,  # noqa: A002 - as in tf.data.
        seed: int | None = None,
    ) -> None:
        """Looks at the shapes of the data, and draws nothing.

        Args:
            data: As for `PoissonBatches`.
            batches: Samples of a pass, at least 1.
            batches_per_record: In how many of them each record is, at least 1
                and at most `batches`.
            physical_batch_size: As for `PoissonBatches`.
            map: As for `PoissonBatches`.
            seed: As for `PoissonBatches`.

        Raises:
            TypeError: As for `PoissonBatches`.
            ValueError: As for `PoissonBatches`.
        """
        super().__init__(data, map=map, seed=seed)
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
