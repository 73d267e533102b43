"""Uniform 64-bit words, and what they decide: subsets, numbers and rows."""

import os
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
# Returns as many independent, uniform words as it is asked for.
Words = Callable[[int], npt.NDArray[np.uint64]]


def from_operating_system(count: int) -> npt.NDArray[np.uint64]:
    """Returns words of the kernel's cryptographic generator."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def from_seed(seed: int, *stream: int, part: int = 0) -> Words:
    """Returns a reproducible generator, which is not a cryptographic one.

    Numbers in [0, 2^32) name its stream, which is independent of all others of
    the seed. So are the parts of a stream, of 2^128 words each.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=stream)
    generator = np.random.Philox(sequence).jumped(part)

    def words(count: int) -> npt.NDArray[np.uint64]:
        return np.asarray(generator.random_raw(count), np.uint64)

    return words


class Randomness(NamedTuple):
    """The randomness of one iterator: independent words for each purpose.

    They decide who takes part, in which rows, and how records are changed.
    """

    draws: Words
    places: Words
    changes: Words

    @classmethod
    def of(cls, seed: int | None, *stream: int) -> Self:
        """Returns a stream of a seed, or the operating system's words."""
        if seed is None:
            return cls(*[from_operating_system] * 3)
        return cls(*(from_seed(seed, *stream, part=k) for k in range(3)))


def random_subset(size: int, population: int, words: Words) -> Integers:
    """Returns a uniformly random subset of `range(population)`, in order.

    It makes independent uniform draws until `size` of them are different. Each
    new one is uniform among those that were not drawn yet. So all subsets of
    this size are equally likely, without rounding, if the words are uniform.
    For more than half of the population, at most 2^63, the others are drawn.
    """
    if 2 * size > population:
        taken = np.ones(population, np.bool_)
        if size < population:
            taken[random_subset(population - size, population, words)] = False
        return np.flatnonzero(taken)
    drawn = np.empty(0, np.int64)
    while True:
        more = size + size // 4 + 8
        drawn = np.concatenate(
            [drawn, random_integers(more, population, words)]
        )
        _, first = np.unique(drawn, return_index=True)
        if len(first) >= size:
            return np.sort(drawn[np.sort(first)[:size]])


def random_integers(count: int, below: int, words: Words) -> Integers:
    """Returns independent integers, each exactly uniform in `[0, below)`.

    Words that are not below the largest multiple of `below`, at most 2^63, are
    drawn again, so that all remainders are equally likely.
    """
    rest = 2**64 % below
    accepted = np.empty(0, np.uint64)
    while len(accepted) < count:
        drawn = words(count - len(accepted))
        if rest:
            drawn = drawn[drawn < np.uint64(2**64 - rest)]
        accepted = np.concatenate([accepted, drawn])
    return (accepted % np.uint64(below)).astype(np.int64)


def in_random_rows(
    units: Integers, physical_batch_size: int, words: Words
) -> Integers:
    """Returns the record in each row of each physical batch, placed at random.

    Layers such as Dropout give each row of a batch its own randomness. If the
    rows were in the order of the data, removing one record would move all later
    records to other rows, and so change their contributions to the sum.

    Guarantee: let a record contribute any function of the record, its physical
    batch and its row; an adversary may know the function. Take two samples, of
    which one has one record more, or another record in place of one. If both
    take the same number of physical batches, their placements can be coupled:
    every record that is in both samples stands in the same physical batch and
    row of both. So only the one record moves the sum.

    Proof: a placement is a uniformly random injection of the n records into the
    M rows. Every injection of n records extends to exactly M - n injections of
    n + 1 records. So a uniformly random injection of n + 1 records, restricted
    to n of them, is a uniformly random injection of these n: draw the larger
    placement, and drop the record. Given the other records and their rows, the
    round is then the pair of distributions that amplification by sampling
    bounds; joint convexity bounds the mixture, as in `BernoulliDraw`.

    Limit: a sample of n takes ceil(n / physical_batch_size) physical batches.
    One record more takes one batch more if the others fill theirs exactly. The
    others then change rows. In a round this has the probability q P(the others
    are exactly 1, 2, 3, ... times `physical_batch_size`), where q is the
    sampling probability, and 0 under zero-out and replace-one, where both
    samples have the same size.

    * If what layers draw is secret, and independent and alike for all rows, the
      sum has the same distribution for all placements. The limit costs nothing.
    * Else the probability, summed over the rounds and times e^epsilon, adds to
      delta. A physical batch that no sample exceeds makes it 0.

    No placement avoids the limit. Samples of two take one batch, so any two
    records would have to stand in different rows of that batch; then so would
    all records of a sample that is larger than the batch.

    The indices `[units, rows]` of a unit stay together, in consecutive rows.
    The physical batch size is a multiple of `rows`, and -1 is padding.
    """
    count, rows = units.shape
    batches = max(1, -(-count * rows // physical_batch_size))
    places = batches * (physical_batch_size // rows)
    laid = np.full((places, rows), -1, np.int64)
    laid[random_places(count, places, words)] = units
    return laid.reshape(batches, physical_batch_size)


def random_places(count: int, places: int, words: Words) -> Integers:
    """Returns `count` different places of `places`, in uniformly random order.

    The order of distinct random words is a uniformly random permutation. Words
    of which two are equal have a chance of `places**2 / 2**65`, and are drawn
    again, so that the distribution is exact.
    """
    while True:
        drawn = words(places)
        order = np.argsort(drawn)
        in_order = drawn[order]
        if (in_order[1:] != in_order[:-1]).all():
            return order[:count].astype(np.int64, copy=False)
