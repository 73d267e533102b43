"""Poisson samples of classes of the records, which take turns."""

import functools
from collections.abc import Iterator
from typing import Unpack

import numpy as np

from keras_dp import _check
from keras_dp._nests import Nest
from keras_dp.ledger import CyclicPoissonSampling
from keras_dp.sampling.bernoulli_draw import BernoulliDraw
from keras_dp.sampling.draw import (
    Draw,
    Integers,
    Pass,
    default_physical_batch_size,
)
from keras_dp.sampling.random_words import Words, random_integers
from keras_dp.sampling.record_source import RandomAccessSource
from keras_dp.sampling.sampler import Sampler, SamplerOptions


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

    Microbatches, and shards for the workers of a cluster, are not available.
    Other arguments are those of `SamplerOptions`.

    Attributes: those of `Sampler`, and
        classes: The number of classes, >= 1.
        sampling_probability: Chance of a record to take part in the round of
            its class, in [2^-60, 1].

    Source: Choquette-Choo et al. (2023), arXiv:2306.08153, section 4.

    >>> batches = CyclicPoissonBatches(np.arange(1000), classes=20)
    >>> batches.expected_sample_size
    50.0
    >>> samples = iter(batches)
    >>> cycle = [next(samples) for _ in range(20)]
    >>> sum(int(batch.mask.sum()) for batch in cycle)
    1000
    """

    def __init__(
        self,
        data: Nest | RandomAccessSource,
        *,
        classes: int,
        sampling_probability: float = 1.0,
        **options: Unpack[SamplerOptions],
    ) -> None:
        arguments = {
            "classes": classes,
            "sampling_probability": sampling_probability,
        }
        super().__init__(data, _of_classes, arguments, **options)
        self.classes = int(classes)
        self.sampling_probability = float(sampling_probability)


def _of_classes(count: int, classes: int, sampling_probability: float) -> Draw:
    _check.integer_at_least(1, classes=classes)
    BernoulliDraw(count, sampling_probability)  # It checks.
    event = CyclicPoissonSampling(
        Pass.new().epoch_id,
        int(classes),
        float(sampling_probability),
        drawn_by_library=True,
    )
    share = event.probability / event.classes
    return Draw(
        count,
        event,
        functools.partial(_in_turn, count, event),
        expected_size=count * share,
        most_rows=default_physical_batch_size(count, share),
        rounds_per_epoch=max(1, round(event.classes / event.probability)),
        rounds_per_pass=event.classes,
    )


def _in_turn(
    count: int, event: CyclicPoissonSampling, words: Words
) -> Iterator[Integers]:
    """Lets each record draw a class, and samples one after the other."""
    drawn = random_integers(count, event.classes, words)
    order = np.argsort(drawn, kind="stable")
    ends = np.cumsum(np.bincount(drawn, minlength=event.classes))
    members = np.split(order, ends[:-1])
    while True:
        for taken in members:
            if len(taken) and event.probability < 1:
                draw = BernoulliDraw(len(taken), event.probability)
                taken = taken[draw.indices(words)]
            yield taken[:, np.newaxis]
