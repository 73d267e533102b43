"""The strategy of a binary tree over the rounds."""

import dataclasses
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_dp._override import override
from keras_dp.ledger.events.strategies.strategy import (
    Array,
    Filter,
    Strategy,
)

_Integers: TypeAlias = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class BinaryTree(Strategy):
    """The matrix of a binary tree over the rounds (DP-FTRL).

    Number the rounds from 1. A node of level `i` holds the sum of a block of
    `2^i` rounds that ends at a multiple of `2^i`. If `2^r` is the largest power
    of two that divides `T`, nodes of the levels 0 to `r` end at round `T`. Row
    `T` of the matrix is the sum of these nodes with the weights `2^i`, divided
    by the root of `1 + 4 + ... + 4^r`.

    So the sum over the first `t` rounds has the noise of one block for each
    binary digit of `t` that is 1. That of a block of `2^l` rounds has the
    variance `1 / (2 - 2^-l)`, the least that any weights of its nodes reach.
    One buffer is kept for each doubling of the rounds. Coefficients need not
    be found.

    Source: Kairouz et al. (2021), arXiv:2103.00039v3, Appendix B, and Honaker
    (2015), "Efficient Use of Differentially Private Binary Trees" (the estimate
    from below). We differ in drawing once a round, what is new in the nodes
    that end there, and not once for each node.

    >>> np.square(BinaryTree().matrix(4)).round(3).tolist()[3]
    [0.762, 0.762, 1.714, 2.333]
    """

    kind: ClassVar[str] = "binary_tree"
    never_grows: ClassVar[bool] = True

    @override
    def first_column(self, rounds: int) -> None:
        return None

    @property
    @override
    def is_non_negative(self) -> bool:
        return True

    @override
    def times(self, values: Array) -> Array:
        rounds = len(values)
        sums = np.concatenate([np.zeros([1, *values.shape[1:]]), values])
        sums = np.cumsum(sums, axis=0)
        nodes = np.zeros_like(sums)
        for level in range(rounds.bit_length()):
            ends = sums[:: 1 << level]
            nodes[1 << level :: 1 << level] += 2.0**level * np.diff(
                ends, axis=0
            )
        lengths = np.sqrt(_squares(_levels(rounds)))
        found: Array = nodes[1:].T / lengths
        return found.T

    @override
    def variances_of_sums(self, rounds: int) -> Array:
        numbers = np.arange(1, rounds + 1)
        found = np.zeros(rounds)
        for level in range(rounds.bit_length()):
            found += (numbers >> level & 1) / (2 - 2.0**-level)
        return found

    @override
    def filter(self, rounds: int) -> Filter:
        # Buffer i - 1 has the noise of the 2^i - 1 rounds before a round at
        # which a node of level i ends, and is emptied in the round after it.
        top = rounds.bit_length() - 1
        levels = np.arange(top + 1)
        weights = np.zeros([2 * top + 1, top])
        decays = np.ones([2 * top + 1, top])
        lead = np.ones(2 * top + 1)
        whole = 2.0 ** (levels + 1) - 1
        lead[: top + 1] = np.sqrt(_squares(levels)) / whole
        for level in levels:
            weights[level, :level] = -(2.0 ** levels[1 : level + 1])
            weights[level] /= whole[level]
            decays[top + level, :level] = 0.0
        # Rounds at which only a leaf ends differ in what is emptied.
        ended = np.concatenate([[top], _levels(rounds)[:-1]])
        own = _levels(rounds)
        order = np.where(own > 0, own, top + ended).astype(np.uint8)
        return Filter(lead, weights, decays, order=order)


def _levels(rounds: int) -> _Integers:
    """Returns the highest level of a node that ends at each round."""
    numbers = np.arange(1, rounds + 1)
    found: _Integers = np.log2(numbers & -numbers).astype(np.int64)
    return found


def _squares(levels: _Integers) -> Array:
    """Returns `1 + 4 + ... + 4^r` for each level `r`."""
    return (4.0 ** (levels + 1) - 1) / 3
