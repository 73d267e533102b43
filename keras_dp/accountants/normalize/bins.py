"""Covariances of the bins that a record may have drawn: balls in bins.

A record draws one of `b` bins, once, and takes part in the rounds j, j + b,
j + 2b, ... of its bin j. Its vectors move the strategy C by at most
`m_j = sum_(s in S_j) |C e_s|` in each row, entrywise. The price follows from
the products `<m_i, m_j>` (docs/accounting.md, Theorem 3). Larger products cost
more, so that one number for each distance `|i - j|` suffices: the largest of
them for an upper bound, and the least for a lower one.
"""

import functools

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.normalize.participations import rounding_margin
from keras_dp.ledger import Strategy


@functools.lru_cache(maxsize=64)
def largest_products(strategy: Strategy, rounds: int, bins: int) -> Array:
    """Returns upper bounds on `<m_i, m_j>` for each distance of two bins.

    Args:
        strategy: C.
        rounds: The number of rounds, >= 1.
        bins: `b` >= 1.

    Returns:
        Shape `[bins]`, in units of the squared bound of a record.

    >>> from keras_dp.ledger import BandedToeplitz
    >>> largest_products(BandedToeplitz((1, 0.5)), 8, 4).round(6).tolist()
    [2.5, 1.0, 0.0, 0.5]
    """
    found = [each.max() for each in _products(strategy, rounds, bins, np.abs)]
    margin = rounding_margin(strategy, rounds)
    return np.array(found) * (1 + margin)


@functools.lru_cache(maxsize=64)
def least_products(
    strategy: Strategy, rounds: int, bins: int, kept: int
) -> Array:
    """Returns lower bounds on what a record reaches among the first bins.

    Its vector is the same in all rounds, so that the entries of C keep their
    signs.

    Args:
        strategy: C.
        rounds: The number of rounds.
        bins: `b`.
        kept: How many of the bins, in [1, bins]. Later ones have fewer rows.

    Returns:
        Shape `[kept]`, as for `largest_products`.
    """
    products = _products(strategy, rounds, bins, np.positive)
    found = np.array(
        [each[: kept - lag].min() for lag, each in enumerate(products[:kept])]
    )
    margin = rounding_margin(strategy, rounds)
    # Terms may cancel, but none of them is larger than the largest square.
    most = float(largest_products(strategy, rounds, bins)[0])
    lowered = found - 2 * margin * most
    # Without negative entries there are no negative products.
    is_positive = all(each.min() >= 0 for each in products)
    return np.maximum(lowered, 0.0) if is_positive else lowered


def _products(
    strategy: Strategy, rounds: int, bins: int, sizes: np.ufunc
) -> list[Array]:
    """Returns the products at each distance, of bins (0, k), (1, 1 + k), ..."""
    column = strategy.first_column(rounds)
    if column is None:
        rows = np.arange(rounds)
        members = (rows[:, np.newaxis] % bins == np.arange(bins)).astype(float)
        if strategy.is_non_negative:
            moved = strategy.times(members)
        else:
            moved = sizes(strategy.matrix(rounds)) @ members
        products = moved.T @ moved
        return [np.diagonal(products, lag) for lag in range(bins)]
    # A record of bin 0 moves these rows, and others move later ones.
    first = sizes(column)
    for s in range(bins, rounds):
        first[s] += first[s - bins]
    found = []
    for lag in range(bins):
        sums = np.zeros(bins - lag)
        if lag < rounds:
            terms = np.cumsum(first[lag:] * first[: rounds - lag])[::-1]
            some = terms[: bins - lag]
            sums[: len(some)] = some
        found.append(sums)
    return found
