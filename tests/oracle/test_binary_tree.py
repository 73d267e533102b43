"""The strategy of a tree, against explicit nodes.

A tree releases each of its nodes with noise of its own. Prefix sums are sums of
nodes with weights, by the estimate from below of Honaker (2015).
"""

import itertools
import math

import numpy as np
import pytest

from keras_dp.accountants import Fourier, strategy_sensitivity
from keras_dp.accountants.normalize.participations import (
    largest_square,
    sensitivity_of_classes,
)
from keras_dp.ledger import (
    BinaryTree,
    CorrelatedSum,
    DisjointBatches,
    FullDataset,
    GaussianSum,
    Round,
)

TREE = BinaryTree()
ROUNDS = [1, 2, 3, 6, 8, 11, 21]


def nodes(rounds):
    """Returns the complete blocks `(first, length)` of `rounds` leaves."""
    return [
        (first, 1 << level)
        for level in range(rounds.bit_length())
        for first in range(0, rounds - (1 << level) + 1, 1 << level)
    ]


def prefix_weights(rounds):
    """Returns what each node adds to each prefix, by explicit node sums.

    A node of length `2^d` inside a block of length `2^l` of the prefix has the
    weight of its level, `2^-(l-d)` over the sum of those.
    """
    tree = nodes(rounds)
    matrix = np.zeros([rounds, len(tree)])
    for t in range(1, rounds + 1):
        start = 0
        for level in reversed(range(t.bit_length())):
            if not t >> level & 1:
                continue
            end = start + (1 << level)
            for column, (first, length) in enumerate(tree):
                if not (start <= first and first + length <= end):
                    continue
                depth = level - (length.bit_length() - 1)
                matrix[t - 1, column] = 2.0**-depth / (2 - 2.0**-level)
            start = end
    return matrix


def decoder(rounds):
    """Returns what each draw of the strategy adds to each prefix sum."""
    return np.cumsum(np.linalg.inv(TREE.matrix(rounds)), axis=0)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_prefix_sums_have_the_covariance_of_their_nodes(rounds) -> None:
    weights, found = prefix_weights(rounds), decoder(rounds)

    np.testing.assert_allclose(found @ found.T, weights @ weights.T, atol=1e-12)
    np.testing.assert_allclose(
        TREE.variances_of_sums(rounds), np.square(weights).sum(axis=1)
    )


def test_the_weights_are_those_of_unbiased_sums() -> None:
    """The oracle itself: node sums of any leaves give their prefixes."""
    leaves = np.random.default_rng(0).standard_normal(11)
    sums = [leaves[a : a + n].sum() for a, n in nodes(11)]

    np.testing.assert_allclose(prefix_weights(11) @ sums, np.cumsum(leaves))


@pytest.mark.parametrize("rounds", ROUNDS)
def test_the_filter_multiplies_by_the_inverse(rounds) -> None:
    how = TREE.filter(rounds)
    found = np.zeros([rounds, rounds])
    buffers = np.full([how.weights.shape[1], rounds], np.nan)
    for step, row in enumerate(how.order):
        kept = np.where(how.weights[row, :, None], buffers, 0.0)
        found[step] = how.weights[row] @ kept
        found[step, step] += how.lead[row]
        old = np.where(how.decays[row, :, None], buffers, 0.0)
        # The first round of a mechanism empties all buffers.
        buffers = (old if step else 0.0) + found[step]

    np.testing.assert_allclose(
        found, np.linalg.inv(TREE.matrix(rounds)), atol=1e-12
    )


def test_the_matrix_is_applied_to_columns() -> None:
    values = np.random.default_rng(1).standard_normal([13, 3])

    np.testing.assert_allclose(
        TREE.times(values), TREE.matrix(13) @ values, atol=1e-12
    )
    np.testing.assert_allclose(
        TREE.times(values[:, 0]), TREE.times(values)[:, 0]
    )


@pytest.mark.parametrize("rounds", [1, 2, 3, 8, 11])
def test_a_record_moves_it_as_far_as_some_pattern(rounds) -> None:
    """No entry is negative, so that equal vectors are the worst."""
    matrix = TREE.matrix(rounds)
    assert matrix.min() >= 0
    true = dict.fromkeys(range(1, rounds + 1), 0.0)
    for taken in itertools.product([0, 1], repeat=rounds):
        if any(taken):
            moved = float(np.linalg.norm(matrix @ taken))
            true[sum(taken)] = max(true[sum(taken)], moved)

    for most, moved in true.items():
        found = strategy_sensitivity(TREE, rounds, 1, most)
        assert found.lower <= moved <= found.upper
        assert found.upper <= math.sqrt(largest_square(rounds, most)) * (
            1 + 1e-9
        )
        if most in (1, rounds):
            assert found.upper <= found.lower * (1 + 1e-9)


@pytest.mark.parametrize("rounds", [1000, 4096])
def test_one_participation_is_the_largest_column(rounds) -> None:
    numbers = np.arange(1, rounds + 1)
    squares = np.zeros(rounds)
    for level in range(rounds.bit_length()):
        ends = -(-numbers >> level) << level  # Of the block of each round.
        is_row = (ends <= rounds) & (ends >> level & 1 == 1)
        digits = np.array([int(each).bit_length() for each in ends - numbers])
        entries = 2.0 ** (level + 1) - 2.0**digits
        squares += is_row * entries**2 * 3 / (4.0 ** (level + 1) - 1)

    found = strategy_sensitivity(TREE, rounds, rounds, 1)

    assert found.lower <= math.sqrt(squares.max()) <= found.upper
    assert found.upper <= found.lower * (1 + 1e-9)


@pytest.mark.parametrize("classes", [1, 3, 4])
def test_classes_that_take_turns_are_exact(classes) -> None:
    matrix = TREE.matrix(12)

    found = sensitivity_of_classes(TREE, 12, classes)

    true = max(
        np.linalg.norm(matrix[:, first::classes].sum(axis=1))
        for first in range(classes)
    )
    assert found.lower <= true <= found.upper <= found.lower * (1 + 1e-9)


def epsilon(query, rounds):
    """Returns the price of rounds, each a name, an epoch and a count."""
    return Fourier().epsilon(
        [
            (
                Round(
                    FullDataset() if epoch is None else DisjointBatches(epoch),
                    (query(name),),
                ),
                count,
            )
            for name, epoch, count in rounds
        ],
        delta=1e-5,
    )


@pytest.mark.parametrize(
    ("epoch", "nodes", "least"), [("e", 9, 0.85), (None, None, 1 - 1e-6)]
)
def test_it_costs_no_more_than_the_nodes_of_its_tree(
    epoch, nodes, least
) -> None:
    """A record of a pass is in one node of each level; else it is in all."""
    rounds = 300
    square = nodes or largest_square(rounds, rounds)
    of_nodes = epsilon(
        lambda name: GaussianSum(name, math.sqrt(square), 8.0),
        [("a", epoch, 1)],
    )

    found = epsilon(
        lambda name: CorrelatedSum("sum", 1.0, 8.0, TREE, rounds, name),
        [("a", epoch, rounds)],
    )

    assert least * of_nodes <= found <= of_nodes * (1 + 1e-9)
