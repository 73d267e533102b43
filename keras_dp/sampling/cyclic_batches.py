"""Poisson samples of classes of the records, which take turns."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_dp import _check
from keras_dp._nests import Nest
from keras_dp._override import override
from keras_dp.ledger import CyclicPoissonSampling
from keras_dp.sampling.bernoulli_draw import BernoulliDraw
from keras_dp.sampling.layouts import default_physical_batch_size
from keras_dp.sampling.random_rows import in_random_rows
from keras_dp.sampling.random_words import Words, random_integers
from keras_dp.sampling.record_source import RandomAccessSource
from keras_dp.sampling.sampler import Draw, Pass, Sampler


class CyclicPoissonBatches(Sampler):
    """Lets each record draw a class, and samples one class after the other.

    Iterating gives physical batches without end. In round `t` a Poisson sample
    of class `t mod classes` is drawn. So a record takes part in rounds that are
    `classes` or a multiple of it apart: a sampler for `CorrelatedSumQuery`. A
    strategy with at most `classes` bands is amplified by sampling, if
    `sampling_probability` is below 1.

    Guarantee: each iterator lets each record draw one of the classes, exactly
    uniformly and independently of all others, once for all of its rounds. In
    each round, each record of the class takes part independently, as in
    `PoissonBatches`; the randomness is from the operating system's
    cryptographic generator. Adding or removing a record leaves the others in
    their samples; and in their rows too, unless the number of physical batches
    changes (see `in_random_rows`). Each iterator has an id of its own, and its
    cycles are numbered.

    Microbatches, and shards for the workers of a cluster, are not available. A
    chosen `seed` has no effect outside of `reproducible()`. Other arguments are
    those of `PoissonBatches`; by default, a record takes part once in an epoch,
    on average.

    Attributes: those of `Sampler`, and
        classes: The number of classes, >= 1.
        sampling_probability: Chance of a record to take part in the round of
            its class, in [2^-60, 1].

    Raises:
        TypeError: An argument is of a wrong type, as for `PoissonBatches`.
        ValueError: A number is out of its range, or the data does not fit, as
            for `PoissonBatches`.

    Source: Choquette-Choo et al. (2023), arXiv:2306.08153, section 4.

    >>> batches = CyclicPoissonBatches(np.arange(1000), classes=20)
    >>> batches.expected_sample_size
    50.0
    >>> samples = iter(batches)
    >>> cycle = [next(samples) for _ in range(20)]
    >>> sum(int(batch.mask.sum()) for batch in cycle)
    1000
    """

    rounds_per_pass: int

    def __init__(
        self,
        data: Nest | RandomAccessSource,
        *,
        classes: int,
        sampling_probability: float = 1.0,
        rounds_per_epoch: int | None = None,
        physical_batch_size: int | None = None,
        map: Callable[..., Any] | None = None,  # noqa: A002 - as in tf.data.
        views: int = 1,
        seed: int | None = None,
    ) -> None:
        super().__init__(data, map=map, views=views, seed=seed)
        _check.integer_at_least(1, classes=classes)
        self.classes = self.rounds_per_pass = int(classes)
        # It checks the probability.
        draw = BernoulliDraw(self.population_size, sampling_probability)
        self.sampling_probability = float(draw.sampling_probability)
        size = default_physical_batch_size(
            self.population_size, self.sampling_probability / self.classes
        )
        rounds = max(1, round(self.classes / self.sampling_probability))
        self._set_sizes(
            physical_batch_size, rounds_per_epoch, default=(size, rounds)
        )

    @property
    @override
    def expected_sample_size(self) -> float:
        share = self.sampling_probability / self.classes
        return self.population_size * share

    @override
    def sampling_of(self, of: Pass) -> CyclicPoissonSampling:
        return CyclicPoissonSampling(
            of.epoch_id,
            self.classes,
            self.sampling_probability,
            drawn_by_library=True,
        )

    def __repr__(self) -> str:
        return (
            f"<CyclicPoissonBatches of {self.population_size:,} records, "
            f"classes={self.classes}, "
            f"sampling_probability={self.sampling_probability:.6g}, "
            f"{self.expected_sample_size:.6g} expected in a sample, "
            f"physical_batch_size={self.physical_batch_size}>"
        )

    @override
    def _draws(self, words: Words, places: Words) -> Iterator[Draw]:
        of = Pass.new()
        drawn = random_integers(self.population_size, self.classes, words)
        order = np.argsort(drawn, kind="stable")
        ends = np.cumsum(np.bincount(drawn, minlength=self.classes))
        members = np.split(order, ends[:-1])
        while True:
            for number, each in enumerate(members):
                taken = each
                if len(each) and self.sampling_probability < 1:
                    draw = BernoulliDraw(len(each), self.sampling_probability)
                    taken = each[draw.indices(words)]
                rows = in_random_rows(
                    taken[:, np.newaxis], self.physical_batch_size, places
                )
                of = of._replace(rounds_left=self.classes - 1 - number)
                yield Draw(rows, of)
            of = of._replace(number=of.number + 1)
