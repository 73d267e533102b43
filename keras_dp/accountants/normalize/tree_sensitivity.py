"""How far a record moves the nodes of a tree, and the rows of `BinaryTree`."""

import math

import numpy as np


def largest_square(leaves: int, participations: int) -> int:
    """Returns the largest sum over the nodes of (participations below)^2.

    On the level of blocks of `b = 2^l` leaves there are `n // b` nodes, each
    with at most `b` participations below it. The sum of their squares is
    largest if as many nodes as possible are full; all participations at the
    first leaves do that on all levels at once.

    Args:
        leaves: `n` >= 1, rounds of the tree.
        participations: Rounds that a record takes part in, in [0, n].

    >>> largest_square(8, 1)  # One path from a leaf to the root.
    4
    >>> largest_square(7, 7)  # 7 leaves, 3 pairs, one block of four.
    35
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

    Args:
        rounds: The number of rounds, >= 1.

    >>> largest_column(4) ** 2  # 1 + 6^2 / 21, of round 3.
    2.71428...
    """
    squares: list[float] = []
    for level in range(rounds.bit_length()):
        size, square = 2.0 ** (level + 1), (4.0 ** (level + 1) - 1) / 3
        entries = size - 2.0 ** np.arange(level + 2)
        of_block = np.array([0.0, *squares])
        found = of_block + np.square(entries[:-1]) / square
        squares.append(float(found.max()))
    return math.sqrt(squares[-1])
