"""Balls in bins: trees of bins above and below them.

The price grows with each product `G_ij` of two bins (docs/accounting.md,
Theorem 4). Trees have prices: two bins have a product that tells how far up
they meet. The likelihood ratio of a tree follows level by level, from
independent log-normal ratios, their sums and products.

*Above.* Some bins are a pattern on the ring of all bins. Tell the adversary by
how far the pattern is turned such that it holds the bin of the record: joint
convexity takes the mixture over turns away. The bins of a pattern are blocks,
in which gaps of several sizes alternate: a block is two smaller ones, a gap
apart. The product of two bins is raised to the largest at their gap or beyond.

Where a chain of bins has less variance, its price counts as well (`chain`).

*Below.* Blocks are bins next to each other, and products become the least of
their level. Later bins have fewer rows: they count as if they told nothing.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.compose.grid import chain, likelihood
from keras_dp.accountants.compose.grid.chain import Chain
from keras_dp.accountants.compose.grid.likelihood import Drawn, Spread
from keras_dp.accountants.normalize.bins import (
    largest_products,
    least_products,
)
from keras_dp.accountants.normalize.mechanisms import BallsInBinsGaussian

# More than the rounding of a few products.
_ROUND_UP = 1 + 1e-14
# A chain of more variance than this share of a tree's is not worth its time.
_CLEARLY_LESS = 0.99
# How often blocks are put together, at most; the gaps that are tried.
_LEVELS_ABOVE, _LEVELS_BELOW = 3, 6
_GAPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# Shares of the bins, from the first on, that are tried for a lower bound.
_KEPT = (1.0, 0.95, 0.9, 0.8, 0.6, 0.4)
# Steps of the grids, as shares of the stddev of what is on them, and limits.
_STEP, _DRAWN_STEP, _LARGEST_STEP = 0.05, 0.3, 0.01
_MOST_POINTS, _MOST_DRAWN = 12_000, 3_000

_Ratio = TypeVar("_Ratio", Spread, Drawn)


class Tree(NamedTuple):
    """Bins whose products tell how far up they meet.

    Attributes:
        products: The product of a bin with itself, of two bins of a pair, of
            two pairs, and so on, falling; and last that of two blocks.
        blocks: The number of blocks, of `2^(len(products) - 2)` bins each.
        share: The share of all bins that the tree has. The likelihood ratio of
            the others is 1.
        gaps: The gaps of a pattern: in a pair, between pairs, and so on, and
            last between blocks.
    """

    products: tuple[float, ...]
    blocks: int
    share: float = 1.0
    gaps: tuple[int, ...] = ()

    @property
    def bins(self) -> int:
        """The number of bins."""
        return self.blocks << (len(self.products) - 2)

    @property
    def variances(self) -> tuple[float, ...]:
        """Variances of the log-normal factors of a bin, a pair, and so on.

        The last factor is that of all blocks together.
        """
        least = (*self.products[1:], 0.0)
        return tuple(
            one - two for one, two in zip(self.products, least, strict=True)
        )

    @property
    def variance(self) -> float:
        """The variance of the likelihood ratio."""
        first, *pairs, last = (
            math.expm1(min(each, EXPONENT)) for each in self.products
        )
        total, size = first, 1
        for each in pairs:
            total, size = total + size * each, 2 * size
        total += (self.blocks - 1) * size * last
        return self.share**2 * total / self.bins


def _largest(mechanism: BallsInBinsGaussian) -> tuple[Array, Array]:
    """Returns the largest products at each distance, on a line and a ring."""
    bins = mechanism.bins
    products = np.asarray(
        largest_products(mechanism.strategy, mechanism.rounds, bins)
        / mechanism.noise_multiplier**2
        * _ROUND_UP
    )
    # On the ring the distance of two bins is the shorter way.
    ring = products[: bins // 2 + 1].copy()
    ring[1:] = np.maximum(ring[1:], products[::-1][: bins // 2])
    return products, ring


@functools.lru_cache(maxsize=64)
def chain_above(mechanism: BallsInBinsGaussian) -> Chain | None:
    """Returns a chain that dominates; `None` if it is hardly below the tree."""
    found = chain.above(*_largest(mechanism))
    most = _CLEARLY_LESS * above(mechanism).variance
    return found if found is not None and found.variance < most else None


@functools.lru_cache(maxsize=64)
def above(mechanism: BallsInBinsGaussian) -> Tree:
    """Returns a tree that dominates: the one of the least variance found."""
    bins = mechanism.bins
    _, ring = _largest(mechanism)
    beyond = np.maximum.accumulate(ring[::-1])[::-1]
    trees = (
        _pattern(ring[0], beyond, bins, gaps)
        for gaps in _rising_gaps(len(ring))
    )
    return min(
        (each for each in trees if each is not None),
        key=lambda each: each.variance,
    )


@functools.lru_cache(maxsize=64)
def below(mechanism: BallsInBinsGaussian) -> Tree | None:
    """Returns a tree that tells less; `None` if none is known.

    Bins that are left out count as 0, which is below no negative product.
    """
    if _least(mechanism, mechanism.bins).min() < 0:
        return None
    found = [
        each
        for share in _KEPT
        for each in _blocks(
            mechanism,
            min(math.ceil(share * mechanism.bins), mechanism.rounds),
        )
        if each.variance
    ]
    return max(found, key=lambda each: each.variance, default=None)


def _rising_gaps(end: int) -> Iterator[tuple[int, ...]]:
    """Yields gaps inside of blocks and, last, between them."""
    some = [each for each in _GAPS if each < end]

    def rest(gaps: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for gap in some:
            if not gaps or gap >= gaps[-1]:
                yield (*gaps, gap)
                if len(gaps) < _LEVELS_ABOVE:
                    yield from rest((*gaps, gap))

    return rest(())


def _pattern(
    alone: float, beyond: Array, bins: int, gaps: tuple[int, ...]
) -> Tree | None:
    """Returns the tree of a pattern; `None` if it does not fit on the ring."""
    width = 0
    for gap in gaps[:-1]:
        width = 2 * width + gap
    blocks = bins // (width + gaps[-1])
    if not blocks:
        return None
    products = [alone, *(float(beyond[gap]) for gap in gaps)]
    # A single block meets no other.
    products[-1] *= blocks > 1
    falling = np.maximum.accumulate(products[::-1])[::-1]
    return Tree(tuple(falling.tolist()), blocks, gaps=gaps)


def _least(mechanism: BallsInBinsGaussian, kept: int) -> Array:
    found = least_products(
        mechanism.strategy, mechanism.rounds, mechanism.bins, kept
    )
    return np.asarray(found / mechanism.noise_multiplier**2 / _ROUND_UP)


def _blocks(mechanism: BallsInBinsGaussian, kept: int) -> Iterator[Tree]:
    """Yields trees below the first bins, with blocks of several sizes."""
    lowest = np.minimum.accumulate(_least(mechanism, kept))
    for levels in range(_LEVELS_BELOW + 1):
        blocks = kept >> levels
        if not blocks:
            return
        tree = [float(lowest[(1 << level) - 1]) for level in range(levels + 1)]
        end = float(lowest[-1]) if blocks > 1 else 0.0
        share = (blocks << levels) / mechanism.bins
        yield Tree((*tree, end), blocks, share)


def spread_sum_of(tree: Tree) -> Spread:
    """Returns the sum of the likelihood ratios of a tree, spread on a grid."""
    step = _step(tree, _STEP, _MOST_POINTS)

    def times(ratio: Spread, variance: float) -> Spread:
        if not variance:
            return ratio
        factor = likelihood.spread_log_normal(math.sqrt(variance), step)
        return likelihood.spread_product(ratio, factor)

    one = Spread(step, 0, np.ones(1), 0.0, 0.0)
    return _together(tree, one, times, likelihood.spread_sum)


def drawn_mean_of(tree: Tree) -> Drawn:
    """Returns the mean of the ratios of all bins, drawn together in cells."""
    step = _step(tree, _DRAWN_STEP, _MOST_DRAWN)

    def times(ratio: Drawn, variance: float) -> Drawn:
        if not variance:
            return ratio
        factor = likelihood.drawn_log_normal(math.sqrt(variance), step)
        return likelihood.drawn_product(ratio, factor, step)

    total = _together(
        tree,
        Drawn(np.ones(1), np.ones(1)),
        times,
        functools.partial(likelihood.drawn_sum, step=step),
    )
    points = tree.share * total.points / tree.bins + (1 - tree.share)
    return Drawn(np.asarray(points), total.masses)


def _together(
    tree: Tree,
    ratio: _Ratio,
    times: Callable[[_Ratio, float], _Ratio],
    plus: Callable[[_Ratio, _Ratio], _Ratio],
) -> _Ratio:
    """Returns the sum of all bins, from a ratio of 1."""
    alone, *pairs, last = tree.variances
    ratio = times(ratio, alone)
    for variance in pairs:
        ratio = times(plus(ratio, ratio), variance)
    return times(likelihood.repeated(ratio, tree.blocks, plus), last)


def _step(tree: Tree, share: float, most: int) -> float:
    stddev = math.sqrt(math.log1p(tree.variance))
    far = 2 * likelihood.reach(math.sqrt(tree.products[0]))
    return max(min(share * stddev, _LARGEST_STEP), far / most)
