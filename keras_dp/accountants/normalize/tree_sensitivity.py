"""How far a record moves the nodes of a tree."""


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
