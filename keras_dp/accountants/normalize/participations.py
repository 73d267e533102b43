"""How far a record that takes part in several rounds moves a strategy.

Let the record take part in the rounds of a set S, of at most k rounds that are
at least b apart, and let `g_t` with `|g_t| <= 1` be its vector in round `t`, in
units of its bound. It moves `C x` by `sum_(t in S) C e_t (x) g_t`. The square
of its length is

    sum_(s, t in S) (C^T C)_st <g_s, g_t>  <=  1_S^T |C^T C| 1_S.      (1)

The vectors may follow from earlier answers. What is moved up to any round is
bounded by (1) whatever they are, so that the mechanism is dominated by one
Gaussian whose sensitivity is the root of the largest (1) (docs/accounting.md,
Theorem 1).

*Toeplitz.* Let `c` be the first column, and `m_i = max_(j >= i) c_j`, which
does not increase. The matrix M of `m` has `|C^T C| <= M^T M` entrywise. Entries
of `M^T M` do not grow if a round moves later, or two rounds further apart. The
i-th round of S is not earlier than `(i - 1) b`, and rounds i and j are not
nearer than `|i - j| b`. So (1) is largest for `S = {0, b, 2b, ...}` (Kalinin
and Lampert 2024, Theorem 2), and the norm of the sum of these columns of M is
an upper bound. It is exact if M is C: if `c` does not increase. Where no two
participations meet in a row of C, or there is only one, `c` takes the place of
`m`, because only norms of columns are added.

*A binary tree.* Row `T` of `BinaryTree` is a sum of nodes that end at `T`, with
weights whose squares add up to 1. So it moves no further than all nodes do
(docs/accounting.md, Theorem 3). A record that takes part once moves it by the
norm of a column. See `largest_square`.

*One set.* Where the rounds of a record are known, (1) is the square of the norm
of the sum of their columns.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_dp import _check
from keras_dp.accountants.arrays import Array
from keras_dp.ledger import BandedToeplitz, Strategy

_ULP = 2.0**-52
# Bounds that are as close as this are not improved.
_CLOSE = 1 + 1e-6


class Sensitivity(NamedTuple):
    """Certified bounds on a sensitivity, in units of one record's bound.

    Attributes:
        lower: No bound on the displacement is smaller.
        upper: No record moves `C x` further.
    """

    lower: float
    upper: float


@functools.lru_cache(maxsize=256)
def strategy_sensitivity(
    strategy: Strategy,
    rounds: int,
    min_separation: int = 1,
    max_participations: int | None = None,
) -> Sensitivity:
    """Returns how far one record moves `C x`, if it takes part several times.

    Multiply by 2 for a record that is replaced by another one. The noise
    multiplier of the whole mechanism is that of its query, divided by the
    upper bound.

    Args:
        strategy: C.
        rounds: The number of rounds, >= 1.
        min_separation: A record that takes part in round `t` takes part again
            in round `t + min_separation` or later. At 1 it may take part in
            every round.
        max_participations: The most rounds in which a record takes part, >= 1;
            `None` if only the separation limits them.

    Returns:
        Bounds rounded outwards. They differ by rounding alone if the strategy
        is Toeplitz, with a first column that does not increase.

    Raises:
        ValueError: A number is below 1, or the strategy has fewer rounds.

    Source: Kalinin and Lampert (2024), arXiv:2405.13763, Theorem 2. We differ
    in the bound for columns that increase.

    >>> from keras_dp.ledger import BandedToeplitz
    >>> strategy_sensitivity(BandedToeplitz((1, 0.75)), 100, 2, 4).upper
    2.5000000...
    """
    _check.integer_at_least(1, rounds=rounds, min_separation=min_separation)
    most = -(-rounds // min_separation)
    if max_participations is not None:
        _check.integer_at_least(1, max_participations=max_participations)
        most = min(most, max_participations)
    if isinstance(strategy, BandedToeplitz):
        column = largest = strategy.first_column(rounds)
        if most > 1 and not is_banded(strategy, min_separation):
            largest = np.maximum.accumulate(column[::-1])[::-1]
        found = Sensitivity(
            _norm_of_sum(column, min_separation, most),
            _norm_of_sum(largest, min_separation, most),
        )
    else:
        found = _of_tree(strategy, rounds, min_separation, most)
    margin = rounding_margin(strategy, rounds)
    return Sensitivity(found.lower * (1 - margin), found.upper * (1 + margin))


@functools.lru_cache(maxsize=256)
def sensitivity_of_classes(
    strategy: Strategy, rounds: int, classes: int
) -> Sensitivity:
    """Returns how far a record moves `C x` in all rounds of its class.

    Class j takes part in the rounds j, j + classes, ... A record reaches the
    lower bound.
    """
    whole = strategy_sensitivity(strategy, rounds, classes)
    if is_toeplitz(strategy) and whole.upper <= whole.lower * _CLOSE:
        return whole
    # Other classes of a Toeplitz matrix move the same rows, but for the last.
    firsts = range(1 if is_toeplitz(strategy) else min(classes, rounds))
    found = [
        _of_pattern(strategy, rounds, range(first, rounds, classes))
        for first in firsts
    ]
    return Sensitivity(
        max(each.lower for each in found),
        min(whole.upper, max(each.upper for each in found)),
    )


@functools.lru_cache(maxsize=256)
def sensitivity_of_epochs(
    strategy: Strategy, rounds: int, sizes: tuple[int, ...]
) -> Sensitivity:
    """Returns how far a record moves `C x` in one round of each epoch.

    There may be more rounds than those of the epochs. A record reaches the
    lower bound. The upper bound holds for any rounds.
    """
    ends = np.cumsum(sizes)
    firsts = ends - sizes
    # The last round of an epoch and the first of the next one are neighbours.
    pairs = np.where(np.arange(len(sizes)) % 2, firsts, ends - 1)
    return Sensitivity(
        max(
            _of_pattern(strategy, rounds, each.tolist()).lower
            for each in (firsts, pairs)
        ),
        strategy_sensitivity(strategy, rounds, 1, len(sizes)).upper,
    )


def largest_column_norm(strategy: Strategy, rounds: int) -> float:
    """Returns an upper bound on the sensitivity to one participation."""
    return strategy_sensitivity(strategy, rounds, rounds, 1).upper


@functools.lru_cache(maxsize=256)
def column_norm(strategy: Strategy, rounds: int, ran: int, place: int) -> float:
    """Returns what one participation reaches in the rows that ran.

    The record takes part in round `place` of the first `ran` ones.
    """
    if not is_toeplitz(strategy):
        return _of_pattern(strategy, ran, [place]).lower
    if place + min(strategy.bands or rounds, rounds) <= ran:
        return largest_column_norm(strategy, rounds)
    return _of_pattern(strategy, ran - place, [0]).lower


def is_toeplitz(strategy: Strategy) -> bool:
    """Returns whether its columns are one column, cut off at the end."""
    return isinstance(strategy, BandedToeplitz)


def is_banded(strategy: Strategy, bands: int) -> bool:
    """Returns whether a strategy has at most so many bands."""
    return strategy.bands is not None and strategy.bands <= bands


def rounding_margin(strategy: Strategy, rounds: int) -> float:
    """Returns more than the relative rounding of a norm.

    In a tree, sums of ones are exact, and a number is made by a few operations
    for each level. Entries of other columns are given. Sums of columns and of
    squares, of numbers of one sign, add no more than one rounding for each
    term.
    """
    if strategy.bands is None:
        return 64 * (rounds.bit_length() + 2) * _ULP + rounds * _ULP
    return 4 * (rounds + 2) * (strategy.bands + 2) * _ULP


def _of_pattern(
    strategy: Strategy, rounds: int, pattern: Sequence[int]
) -> Sensitivity:
    margin = rounding_margin(strategy, rounds)
    moved = _moved_by_ones(strategy, rounds, pattern)
    return Sensitivity(moved * (1 - margin), moved * (1 + margin))


def _moved_by_ones(
    strategy: Strategy, rounds: int, pattern: Sequence[int]
) -> float:
    ones = np.zeros(rounds)
    ones[pattern] = 1.0
    return float(np.linalg.norm(strategy.times(ones)))


def _of_tree(
    strategy: Strategy, rounds: int, separation: int, most: int
) -> Sensitivity:
    pattern = range(0, rounds, separation)[:most]
    column = largest_column(rounds)
    lower = max(column, _moved_by_ones(strategy, rounds, pattern))
    if most in (1, rounds):  # No set of rounds has more than all of them.
        return Sensitivity(lower, lower)
    nodes = math.sqrt(largest_square(rounds, most))
    return Sensitivity(lower, max(lower, min(most * column, nodes)))


def _norm_of_sum(column: Array, separation: int, most: int) -> float:
    """Returns the norm of the sum of columns 0, b, 2b, ... of a Toeplitz."""
    rounds = len(column)
    cycles = -(-rounds // separation)
    padded = np.zeros(cycles * separation)
    padded[:rounds] = column
    rows = padded.reshape(cycles, separation)
    if most >= cycles:
        sums = np.cumsum(rows, axis=0)
    else:
        sums = np.zeros_like(rows)
        for shift in range(most):  # No difference of sums, which would cancel.
            sums[shift:] += rows[: cycles - shift]
    return float(np.linalg.norm(sums.ravel()[:rounds]))


def largest_square(leaves: int, participations: int) -> int:
    """Returns the largest sum over the nodes of (participations below)^2.

    On the level of blocks of `b = 2^l` leaves there are `n // b` nodes, each
    with at most `b` participations below it. The sum of their squares is
    largest if as many nodes as possible are full; all participations at the
    first leaves do that on all levels at once.
    """
    total = 0
    for level in range(leaves.bit_length()):
        block = 1 << level
        nodes = leaves // block
        full = min(participations // block, nodes)
        total += full * block**2
        if full < nodes:
            total += (participations - full * block) ** 2
    return total


def largest_column(rounds: int) -> float:
    """Returns the largest norm of a column of `BinaryTree`.

    A round of a block is its last one, or in the first half of it, or of its
    second half, and so on. In each of these smaller blocks the best round has
    the best norm; the row of the last round adds one entry.
    """
    squares: list[float] = []
    for level in range(rounds.bit_length()):
        size, square = 2.0 ** (level + 1), (4.0 ** (level + 1) - 1) / 3
        entries = size - 2.0 ** np.arange(level + 2)
        of_block = np.array([0.0, *squares])
        found = of_block + np.square(entries[:-1]) / square
        squares.append(float(found.max()))
    return math.sqrt(squares[-1])
