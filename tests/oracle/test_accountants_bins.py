"""Balls in bins against every adversary of tiny mechanisms.

The record draws one of some bins, once. The dominating pair of
docs/accounting.md, Theorem 3, is integrated over one number for each bin, and
compared with adversaries that choose each vector by the signs of earlier
answers, and with every sequence of signs.
"""

import itertools
import math

import numpy as np
import pytest

from keras_dp.accountants import Fourier
from keras_dp.accountants.compose.grid import bins as trees
from keras_dp.accountants.compose.grid import chain as chains
from keras_dp.accountants.compose.grid import likelihood
from keras_dp.accountants.normalize.bins import (
    largest_products,
    least_products,
)
from keras_dp.accountants.normalize.mechanisms import BallsInBinsGaussian
from keras_dp.ledger import (
    BandedToeplitz,
    BufferedToeplitz,
    InverseToeplitz,
    LowerTriangular,
)
from tests.oracle.test_accountants_correlated import (
    QUADRATURE,
    cycles,
    largest_deltas,
    nodes,
)

MONOTONE = [
    BandedToeplitz((1.0,)),
    BandedToeplitz((1.0, 0.5)),
    BandedToeplitz((1.0, 0.75, 0.5, 0.25)),
    BufferedToeplitz((0.9, 0.2), (0.3, 0.4)),
    InverseToeplitz.subtracting(0.9),
]
OTHERS = [
    BandedToeplitz((1.0, -0.5, 0.75)),
    BandedToeplitz((1.0, 2.0)),
    LowerTriangular.from_matrix(np.tril(np.ones([6, 6])) + np.eye(6)),
]


def rounds_of(bins, rounds):
    """Returns the rounds of each bin."""
    return [[*range(j, rounds, bins)] for j in range(bins)]


def products_of(matrix, bins, vectors=None):
    """Returns `<m_i, m_j>` of the bins, with signs for the rounds."""
    moved = np.stack(
        [
            matrix[:, taken]
            @ (np.ones(len(taken)) if vectors is None else vectors[taken])
            for taken in rounds_of(bins, len(matrix))
        ]
    )
    return moved @ moved.T


def deltas_of(products, epsilon, points=64):
    """Returns delta both ways round, of a matrix of products of bins."""
    bins = len(products)
    values, vectors = np.linalg.eigh(products)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    point, weight = nodes(points)
    grid = np.stack(
        [each.ravel() for each in np.meshgrid(*[point] * bins, indexing="ij")]
    )
    density = np.ones(grid.shape[1])
    for each in np.meshgrid(*[weight] * bins, indexing="ij"):
        density *= each.ravel()
    logs = root @ grid - np.diag(products)[:, np.newaxis] / 2
    ratio = np.exp(logs).mean(axis=0)
    return np.array(
        [
            density @ np.maximum(ratio - math.exp(epsilon), 0),
            density @ np.maximum(1 - math.exp(epsilon) * ratio, 0),
        ]
    )


@pytest.mark.parametrize("strategy", [*MONOTONE, *OTHERS])
@pytest.mark.parametrize(("rounds", "bins"), [(6, 2), (6, 4), (5, 3), (3, 5)])
def test_products_hold_those_of_every_pair_of_bins(
    strategy, rounds, bins
) -> None:
    matrix = strategy.matrix(rounds)
    sized = products_of(np.abs(matrix), bins)
    signed = products_of(matrix, bins)
    largest = largest_products(strategy, rounds, bins)

    for lag in range(bins):
        assert largest[lag] >= np.diagonal(sized, lag).max()
        assert largest[lag] <= np.diagonal(sized, lag).max() + 1e-9
    for kept in range(1, bins + 1):
        least = least_products(strategy, rounds, bins, kept)
        for lag in range(kept):
            true = np.diagonal(signed[:kept, :kept], lag).min()
            assert true - 1e-9 <= least[lag] <= true


@pytest.mark.full
@pytest.mark.parametrize(
    ("strategy", "bins", "stddev"),
    [
        (BandedToeplitz((1.0, 0.75, 0.5)), 2, 1.0),
        (BandedToeplitz((1.0, 0.5)), 3, 0.75),
        (BandedToeplitz((1.0, -0.75, 0.5)), 2, 1.0),
    ],
)
def test_the_pair_dominates_adaptive_adversaries(
    strategy, bins, stddev
) -> None:
    """Three rounds, 64 adversaries, both directions."""
    matrix, epsilon = strategy.matrix(3), 0.5
    participations = [(1 / bins, taken) for taken in rounds_of(bins, 3)]

    found = largest_deltas(matrix, participations, stddev, epsilon, 24)

    pair = deltas_of(products_of(np.abs(matrix), bins) / stddev**2, epsilon)
    assert (found <= pair * (1 + QUADRATURE)).all()
    if (matrix >= 0).all():  # It is attained by one vector in all rounds.
        assert (found >= pair * (1 - QUADRATURE)).all()
    cheaper = deltas_of(
        products_of(np.abs(matrix), bins) / (1.1 * stddev) ** 2, epsilon
    )
    assert (found > cheaper).all()  # So a lower price would be found out.


@pytest.mark.full
@pytest.mark.parametrize("strategy", [*MONOTONE, *OTHERS])
@pytest.mark.parametrize(
    ("rounds", "bins"),
    [(6, 2), pytest.param(5, 3, marks=pytest.mark.nightly)],
)
def test_bounds_hold_every_sequence_of_signs(strategy, rounds, bins) -> None:
    matrix, stddev, epsilon = strategy.matrix(rounds), 3.0, 0.5
    # Other sequences differ from these by the sign of all of them.
    vectors = [
        np.array([1.0, *signs])
        for signs in itertools.product([-1.0, 1.0], repeat=rounds - 1)
    ]
    points = 64 if bins == 2 else 24
    true = max(
        deltas_of(
            products_of(matrix, bins, each) / stddev**2, epsilon, points
        ).max()
        for each in vectors
    )

    found = Fourier().delta_bounds(
        cycles(strategy, rounds, bins, 1.0, stddev), epsilon=epsilon
    )

    assert found.lower <= true * (1 + QUADRATURE)
    assert true <= found.upper * (1 + QUADRATURE)


def drawn_ratios(products, size=1_000_000, seed=0):
    """Returns random likelihood ratios of the pair, without the record."""
    values, vectors = np.linalg.eigh(products)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    normal = np.random.default_rng(seed).normal(size=[len(products), size])
    logs = root @ normal - np.diag(products)[:, np.newaxis] / 2
    return np.exp(logs).mean(axis=0)


# A mean is this many standard errors off with a chance of 1e-9.
ERRORS = 6.1


@pytest.mark.full
@pytest.mark.parametrize(
    ("strategy", "tight"),
    [*zip(MONOTONE, (1.03, 1.45, 1.45, 1.35, 1.35), strict=True)],
)
def test_bounds_hold_the_pair_of_eight_bins(strategy, tight) -> None:
    matrix, epsilon = strategy.matrix(16), 0.5
    stddev = 1.25 * math.sqrt(products_of(matrix, 8)[0, 0])
    ratios = drawn_ratios(products_of(matrix, 8) / stddev**2)
    parts = np.maximum(ratios - math.exp(epsilon), 0)
    true, error = parts.mean(), ERRORS * parts.std() / math.sqrt(len(parts))

    found, cheaper = (
        Fourier().delta_bounds(
            cycles(strategy, 16, 8, 1.0, each), epsilon=epsilon
        )
        for each in (stddev, 2 * stddev)
    )

    assert found.lower <= true + error
    assert true - error <= found.upper <= tight * true + error
    assert cheaper.upper < true - error  # So a lower price would be found out.


def test_a_tree_is_what_its_products_say() -> None:
    """Two pairs of bins: from both sides, and near to each other."""
    tree = trees.Tree((0.6, 0.4, 0.1), 2, share=0.5)
    products = np.full([4, 4], 0.1)
    products[:2, :2] = products[2:, 2:] = 0.4
    np.fill_diagonal(products, 0.6)
    ratios = drawn_ratios(products)

    spread, drawn = trees.spread_sum_of(tree), trees.drawn_mean_of(tree)

    assert tree.bins == 4
    assert tree.variance == pytest.approx(np.expm1(products).mean() / 4)
    for level in (0.5, 1.0, 2.0, 4.0):
        parts = np.maximum(ratios - level, 0)
        error = ERRORS * parts.std() / math.sqrt(len(parts))
        high = spread.masses @ np.maximum(np.exp(spread.logs) / 4 - level, 0)
        of_half = np.maximum(drawn.points - (1 + level) / 2, 0)
        low = 2 * drawn.masses @ of_half
        assert low - error <= parts.mean() <= high + error
        assert low <= high <= 1.01 * low


@pytest.mark.parametrize("size", [2, 3, 7, 16, 100])
def test_trees_hold_every_product_of_a_pattern(size) -> None:
    """It may be turned; those below have bins next to each other."""
    mechanism = BallsInBinsGaussian(
        3.0, BandedToeplitz((1.0, 0.7, 0.5, 0.4, 0.1)), 3 * size, size
    )
    true = products_of(mechanism.strategy.matrix(3 * size), size) / 9

    high, low = trees.above(mechanism), trees.below(mechanism)

    of_high = tree_products(high)
    places = places_of(high)
    for turn in range(size):
        turned = (places + turn) % size
        assert (true[np.ix_(turned, turned)] <= of_high + 1e-12).all()
    of_low = tree_products(low)
    assert (of_low <= true[: low.bins, : low.bins] + 1e-12).all()


def tree_products(tree):
    """Returns the products of all bins of a tree, as a matrix."""
    number = np.arange(tree.bins)
    levels = len(tree.products) - 2
    met = np.full([tree.bins, tree.bins], levels + 1)
    for level in range(levels, -1, -1):
        together = number >> level
        met[together[:, None] == together] = level
    return np.array(tree.products)[met]


def places_of(tree):
    """Returns the bins of a pattern, from its gaps."""
    places, width = np.zeros(1, int), 0
    for gap in tree.gaps[:-1]:
        places = np.concatenate([places, places + width + gap])
        width = 2 * width + gap
    starts = np.arange(tree.blocks) * (width + tree.gaps[-1])
    return (starts[:, None] + places).ravel()


@pytest.mark.parametrize("size", [3, 7, 16, 100])
@pytest.mark.parametrize("strategy", MONOTONE[1:])
def test_chains_hold_every_product(strategy, size) -> None:
    """They hold all bins, or all but some, whatever the turn."""
    mechanism = BallsInBinsGaussian(3.0, strategy, 3 * size, size)
    true = products_of(strategy.matrix(3 * size), size) / 9
    products = largest_products(strategy, 3 * size, size) / 9
    ring = np.maximum(products[1:], products[:0:-1])[: size // 2]
    ring = np.concatenate([products[:1], ring])

    chain = chains.above(products, ring)

    of_chain = chain_products(chain)
    for turn in range(size if chain.bins < size else 1):
        turned = (np.arange(chain.bins) + turn) % size
        assert (true[np.ix_(turned, turned)] <= of_chain + 1e-12).all()
    found = trees.chain_above(mechanism)
    assert found is None or found.variance <= trees.above(mechanism).variance


def chain_products(chain):
    """Returns the products of all bins of a chain, as a matrix."""
    number = np.arange(chain.bins)
    distance = abs(number[:, None] - number)
    linked = chain.shared + chain.linked * chain.decay**distance
    return linked + chain.own * np.eye(chain.bins)


@pytest.mark.full
@pytest.mark.parametrize(
    "chain",
    [
        chains.Chain(8, 0.0, 0.5, 0.6, 0.5),
        chains.Chain(4, 0.0, 2.0, 0.9, 0.0),
        chains.Chain(6, 0.0, 0.0, 0.5, 1.0),
    ],
)
def test_a_chain_is_what_its_products_say(chain) -> None:
    """From above, at strikes on both sides of 1, and near."""
    ratios = drawn_ratios(chain_products(chain))
    fewer = drawn_ratios(0.9 * chain_products(chain))

    strikes, means = chains.calls_of(chain)

    assert chain.variance == pytest.approx(
        np.expm1(chain_products(chain)).mean()
    )
    for strike in (0.5, 0.75, 1.0, 1.5, 2.0):
        parts = np.maximum(ratios - strike, 0)
        error = ERRORS * parts.std() / math.sqrt(len(parts))
        found = np.interp(strike, strikes, means)
        assert parts.mean() - error <= found <= 1.03 * parts.mean() + error
        # So means that are too small would be found out.
        below = np.maximum(fewer - strike, 0)
        assert strike < 1 or below.mean() + error < parts.mean()


def test_a_chain_of_two_bins_is_integrated() -> None:
    """Two bins are one integral; the means are above it, by at most 3 %."""
    chain = chains.Chain(2, 0.0, 0.6, 0.5, 0.3)

    strikes, means = chains.calls_of(chain)

    for epsilon in (-0.5, 0.0, 0.5, 1.0):
        exact, _ = deltas_of(chain_products(chain), epsilon, points=200)
        found = np.interp(math.exp(epsilon), strikes, means)
        assert exact * (1 - QUADRATURE) <= found <= 1.03 * exact


@pytest.mark.full
def test_a_chain_and_a_tree_dominate_together() -> None:
    chain = chains.Chain(8, 0.2, 0.5, 0.6, 0.5)
    tree = likelihood.spread_log_normal(1.0, 0.02)

    found = chains.no_more_than(tree, chain)

    assert found.masses.sum() + found.zero == pytest.approx(1)
    mean = found.masses @ np.exp(found.logs) + found.infinite
    assert mean == pytest.approx(1)
    ratios = drawn_ratios(chain_products(chain))
    for strike in (0.5, 1.0, 2.0):
        parts = np.maximum(ratios - strike, 0)
        error = ERRORS * parts.std() / math.sqrt(len(parts))
        mean = found.masses @ np.maximum(np.exp(found.logs) - strike, 0)
        assert parts.mean() - error <= mean <= 1.05 * parts.mean() + error


def test_signs_of_entries_matter() -> None:
    """Why the pair takes absolute values: others are beaten by some signs."""
    matrix = BandedToeplitz((1.0, -0.75, 0.5)).matrix(6)

    bare = deltas_of(products_of(matrix, 2), 0.5)
    turned = deltas_of(
        products_of(matrix, 2, np.array([1.0, -1, 1, -1, 1, -1])), 0.5
    )
    sized = deltas_of(products_of(np.abs(matrix), 2), 0.5)

    assert (turned > 1.05 * bare).all()
    assert (turned <= sized * (1 + QUADRATURE)).all()


@pytest.mark.parametrize("seed", range(6))
def test_larger_products_cost_more(seed) -> None:
    """Kahane's inequality, both ways round, for covariances of three bins."""
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(2, 3, 3)) * 0.7
    low = first @ first.T
    more = second @ second.T
    high = low + more + abs(float(more.min()))

    assert (high >= low).all()
    for epsilon in (0.0, 0.5, 1.5):
        costs = [deltas_of(each, epsilon, 32) for each in (low, high)]
        assert (costs[0] <= costs[1] * (1 + 5 * QUADRATURE) + 1e-9).all()
