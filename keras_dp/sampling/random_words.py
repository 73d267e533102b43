"""Uniform 64-bit words, which samplers draw by, and subsets drawn by them."""

import os
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
# Returns as many independent, uniform words as it is asked for.
Words = Callable[[int], npt.NDArray[np.uint64]]


def from_operating_system(count: int) -> npt.NDArray[np.uint64]:
    """Returns `count` words of the kernel's cryptographic generator."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def from_seed(seed: int, *stream: int, part: int = 0) -> Words:
    """Returns a reproducible generator, which is not a cryptographic one.

    Args:
        seed: Chosen by the caller, >= 0.
        *stream: Numbers in [0, 2^32) that name the generator: each is
            independent of all others of the seed.
        part: A part of the stream. Parts are independent: 2^128 words each.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=stream)
    generator = np.random.Philox(sequence).jumped(part)

    def words(count: int) -> npt.NDArray[np.uint64]:
        return np.asarray(generator.random_raw(count), np.uint64)

    return words


class Randomness(NamedTuple):
    """The randomness of one iterator: independent words for each purpose.

    Attributes:
        draws: Words that decide who takes part.
        places: Words that decide on rows.
        changes: Words for changes of records.
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
    """Returns a uniformly random subset of a given size, in order.

    It makes independent uniform draws until `size` of them are different. Each
    new one is uniform among those that were not drawn yet. So all subsets of
    this size are equally likely, without rounding, if the words are uniform.
    For more than half of the population, the others are drawn.

    Args:
        size: The size of the subset, in [1, population].
        population: The subset is of the numbers from 0 to `population - 1`; at
            most 2^63.
        words: The source of randomness.

    >>> words = lambda count: np.arange(count, dtype=np.uint64) * 3
    >>> random_subset(4, 10, words), random_subset(10, 10, words)
    (array([0, 3, 6, 9]), array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]))
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

    Words that are not below the largest multiple of `below` are drawn again, so
    that all remainders are equally likely.

    Args:
        count: The number of integers.
        below: In [1, 2^63].
        words: The source of randomness.
    """
    rest = 2**64 % below
    accepted = np.empty(0, np.uint64)
    while len(accepted) < count:
        drawn = words(count - len(accepted))
        if rest:
            drawn = drawn[drawn < np.uint64(2**64 - rest)]
        accepted = np.concatenate([accepted, drawn])
    return (accepted % np.uint64(below)).astype(np.int64)
