"""Bounds on the rounding of float programs.

The lemmas are those of `docs/finite_precision.md`. Nothing here depends on data
or on TensorFlow.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

UNIT_32 = 2.0**-24
UNIT_64 = 2.0**-53

# Covers some hundred products and sums of positive numbers in float64.
UP = 1 + 2.0**-40
# The most that an operation in float32 loses to underflow, whether or not
# denormal numbers are flushed to zero.
UNDERFLOW = 2.0**-126
# Records with an input or a cotangent beyond this size have weight 0.
LARGEST_ENTRY = 2.0**40
# One term of a sum loses at most this to underflow. One of its three factors
# may be flushed to zero, beside two others of at most `LARGEST_ENTRY` and 1,
# and every addition loses at most `UNDERFLOW`. Later roundings do not double
# it.
UNDERFLOW_OF_TERM = 2.0**-83

# The terms of a gradient are at most this many times as long, together, as the
# gradient is taken for.
LARGEST_RATIO = 2.0**10
# Rounding in one block may lose this part of the clip. Both neighbours lose it,
# so it takes 0.8 % of the clip: as much as blocks of 256 records.
LARGEST_BLOCK_ERROR = 0.004
# Fewer terms in a block take longer than a sum in float64.
_FEWEST_TERMS = 64


def gamma(roundings: float, unit: float) -> float:
    """Returns `n u / (1 - n u)`, the largest relative error of n roundings.

    There are n roundings of unit u on the way of one term. So many that nothing
    can be said are refused.

    Source: Higham (2002), Accuracy and Stability of Numerical Algorithms,
    Lemma 3.1 and eq. 4.4. See lemma 1 of `docs/finite_precision.md`.

    >>> round(gamma(2**10, UNIT_32) * 2**14, 6)
    1.000061
    """
    if roundings * unit > 0.5:
        raise ValueError(
            f"{roundings:g} roundings with the unit {unit:g} have no bound. "
            "Sum fewer numbers, or in float64."
        )
    # This is itself computed in float64, which the last factor covers.
    return roundings * unit / (1 - roundings * unit) * (1 + 2.0**-50)


class Proven(NamedTuple):
    """A norm and a sum of one leaf of a batch of records, with their errors.

    The batch is cut into equal blocks, whose sums are added without rounding.
    Let `u_i` be the root of `squares[i]`, and let weights `w_i` have
    `w_i u_i <= c` for all i. If one record is added, removed or zeroed out, the
    exact sum moves by at most c in L2 norm. What is computed moves by at most

        c + 2 (c error + absolute * max(1, max_i w_i)).

    Attributes:
        squares: An upper bound on the squared norm of each record, `[batch]`,
            float64. It is infinite for a record that must have weight 0.
        blocks: The number of blocks, or 0 if parts of one block were added in
            blocks of other sizes.
        error: See above.
        absolute: See above; it is what underflow loses.
        sums: Returns the sums of `weights[i] * record[i]` over each block,
            `[blocks, ...]`, for weights `[batch]` in float32 or float64. A
            record of weight 0 contributes nothing, even if it is not finite.
    """

    squares: Any
    blocks: int
    error: float
    absolute: float
    sums: Callable[[Any], Any]


class Joint(NamedTuple):
    """The norms and errors of several leaves together; see `Proven`."""

    squares: Any
    error: float
    absolute: float


def joint(leaves: Sequence[Proven]) -> Joint:
    """Returns what is proven of the joint norm of several leaves (lemma 4).

    A record is in one block of each leaf. Of leaves with the same blocks the
    largest error holds. Leaves with other blocks add up as L2 norms do.
    """
    errors: dict[int, float] = {}
    for leaf in leaves:
        own = leaf.blocks or -len(errors) - 1  # 0 is like no other.
        errors[own] = max(errors.get(own, 0.0), leaf.error)
    return Joint(
        squares=sum(leaf.squares for leaf in leaves) * UP,
        error=math.hypot(*errors.values()) * UP,
        absolute=sum(leaf.absolute for leaf in leaves),
    )


def over(leaf: Proven, scale: float, wide: Callable[[Any], Any]) -> Proven:
    """Returns what is proven of a leaf divided by a number (lemma 4).

    `wide` casts to float64, which holds what float32 would lose to overflow
    and underflow.
    """
    factor = 1 / scale
    return leaf._replace(
        squares=leaf.squares * factor**2 * UP,
        error=leaf.error + 4 * UNIT_64 * leaf.squares.shape[0],
        absolute=leaf.absolute * factor * UP,
        sums=lambda weights: wide(leaf.sums(weights)) * factor,
    )


def block_size(batch: int, terms: int = 1, ratio: float = 1.0) -> int | None:
    """Returns how many records are summed in float32, or `None` for float64.

    Args:
        batch: The number of records. Blocks are equal parts of it.
        terms: The number of terms of a record in one coordinate.
        ratio: By how much the sum of the norms of the terms of a record may
            exceed its norm.

    >>> [block_size(batch) for batch in (7, 256, 512, 1000, 1021)]
    [7, 256, 256, 250, None]
    """
    for size in range(batch, 0, -1):
        error = float32_error(size, terms, ratio)
        if batch % size == 0 and error <= LARGEST_BLOCK_ERROR:
            enough = size == batch or size * terms >= _FEWEST_TERMS
            return size if enough else None
    return None


def float32_error(size: int, terms: int, ratio: float) -> float:
    """Returns the error of a block's sum in float32 (lemma 3)."""
    roundings = size * terms + 2
    if roundings * UNIT_32 > 0.5:
        return math.inf
    return gamma(roundings, UNIT_32) * size * ratio
