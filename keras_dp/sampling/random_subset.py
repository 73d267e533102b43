"""Draws uniformly random subsets in time of their size."""

import numpy as np
import numpy.typing as npt

from keras_dp.sampling.random_words import Words

Integers = npt.NDArray[np.int64]


def random_subset(size: int, population: int, words: Words) -> Integers:
    """Returns a uniformly random subset of given size, in order.

    Independent uniform draws, of which the first `size` different ones count:
    whatever they are, the next different one is uniform among the others. So
    all sets of `size` are equally likely, for words that are uniform, without
    rounding. Of more than half of the population, those left out are drawn.

    Args:
        size: In [1, population].
        population: At most 2^63.
        words: Where the randomness comes from.

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


def random_subsets(
    count: int, size: int, population: int, words: Words
) -> Integers:
    """Returns independent, uniformly random subsets of one small size.

    Floyd's algorithm: for `j` from `population - size` on, each subset takes a
    uniform draw from `[0, j]`, or `j` if it has that already. A subset of
    `[0, j]` holds `j` with the chance that it should, `taken / (j + 1)`; else
    it is a uniform one of `[0, j-1]` and another element of that. Of more than
    half of the population, those left out are drawn.

    Args:
        count: How many.
        size: In [1, population].
        population: At most 2^31.
        words: Where the randomness comes from.

    Returns:
        Shape `[count, size]`, each row of different numbers in any order.

    Source: Bentley and Floyd (1987), Programming pearls: a sample of
    brilliance, Communications of the ACM 30(9).

    >>> words = lambda count: np.arange(count, dtype=np.uint64)
    >>> random_subsets(3, 2, 4, words)
    array([[0, 3],
           [1, 3],
           [2, 3]])
    """
    if 2 * size > population:
        left = np.ones((count, population), np.bool_)
        if size < population:
            others = random_subsets(count, population - size, population, words)
            left[np.arange(count)[:, np.newaxis], others] = False
        return np.nonzero(left)[1].reshape(count, size)
    taken = np.empty((count, size), np.int64)
    for place, last in enumerate(range(population - size, population)):
        drawn = random_integers(count, last + 1, words)
        is_there = (taken[:, :place] == drawn[:, np.newaxis]).any(axis=1)
        taken[:, place] = np.where(is_there, last, drawn)
    return taken


def random_integers(count: int, below: int, words: Words) -> Integers:
    """Returns independent integers, each exactly uniform in `[0, below)`.

    Words from the last multiple of `below` on are drawn again.

    Args:
        count: How many.
        below: In [1, 2^63].
        words: Where the randomness comes from.
    """
    rest = 2**64 % below
    accepted = np.empty(0, np.uint64)
    while len(accepted) < count:
        drawn = words(count - len(accepted))
        if rest:
            drawn = drawn[drawn < np.uint64(2**64 - rest)]
        accepted = np.concatenate([accepted, drawn])
    return (accepted % np.uint64(below)).astype(np.int64)
