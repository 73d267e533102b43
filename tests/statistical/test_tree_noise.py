"""The noise of a tree's releases has the covariance that its nodes give it.

Seeds are fixed. Had they been free, each check would fail for a correct
library with probability `FALSE_ALARM`. Every check is also shown to fail where
it ought.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_dp.dp_queries.restart_query import RestartQuery
from keras_dp.dp_queries.tree_residual_sum_query import TreeResidualSumQuery

FALSE_ALARM = 1e-6
SIZE = 20_000
STDDEV = 3.0
ROUNDS = 11
SPEC = tf.TensorSpec([SIZE])


def nodes(rounds):
    """Returns the complete blocks `(first, length)` of `rounds` leaves."""
    return [
        (first, 1 << level)
        for level in range(rounds.bit_length())
        for first in range(0, rounds - (1 << level) + 1, 1 << level)
    ]


def prefix_weights(rounds, is_efficient=True):
    """Returns what each node adds to each prefix, by explicit node sums.

    A node of length `2^d` inside a block of length `2^l` of the prefix has the
    weight of its level, `2^-(l-d)` over the sum of those. If not efficient, a
    block is its own node alone.
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
                if is_efficient:
                    matrix[t - 1, column] = 2.0**-depth / (2 - 2.0**-level)
                elif depth == 0:
                    matrix[t - 1, column] = 1.0
            start = end
    return matrix


def prefix_covariance(is_efficient=True):
    weights = prefix_weights(ROUNDS, is_efficient)
    return STDDEV**2 * weights @ weights.T


def restarted_covariance(period):
    """Prefixes of later trees stand upon the last of those before."""
    weights = prefix_weights(period)
    count = weights.shape[1]
    trees = -(-ROUNDS // period)
    matrix = np.zeros([ROUNDS, trees * count])
    for t in range(ROUNDS):
        tree, own = divmod(t, period)
        for earlier in range(tree):
            matrix[t, earlier * count : (earlier + 1) * count] = weights[-1]
        matrix[t, tree * count : (tree + 1) * count] = weights[own]
    return STDDEV**2 * matrix @ matrix.T


@functools.cache
def releases(way="tf", period=None):
    """Returns the releases of `ROUNDS` empty samples, `[ROUNDS, SIZE]`."""
    query = TreeResidualSumQuery(STDDEV, STDDEV, SPEC, 5)
    if period:
        query = RestartQuery(query, period)

    def one_round(state):
        return query.get_noised_result(tf.zeros([SIZE]), state)

    one_round = tf.function(one_round, jit_compile=way == "xla")
    state = query.initial_global_state(11)
    rows = []
    for _ in range(ROUNDS):
        value, state, _ = one_round(state)
        rows.append(value.numpy().astype(np.float64))
    return np.array(rows)


def prefixes(way="tf", period=None):
    return np.cumsum(releases(way, period), axis=0)


def p_values(rows, covariance):
    """Returns those of what whitened rows must be: independent and normal.

    Under the stated covariance `L^-1 rows` has independent standard normal
    entries: per row a sum of squares is chi-squared, per pair of rows the
    correlation is zero, and all entries have the normal distribution.
    """
    white = np.linalg.solve(np.linalg.cholesky(covariance), rows)
    law = stats.chi2(rows.shape[1])
    squares = np.square(white).sum(axis=1)
    found = [2 * min(law.cdf(s), law.sf(s)) for s in squares]
    for i in range(len(white)):
        for j in range(i):
            found.append(stats.pearsonr(white[i], white[j]).pvalue)
    found.append(stats.kstest(white.ravel(), stats.norm.cdf).pvalue)
    return found


def seems_right(rows, covariance):
    found = p_values(rows, covariance)
    return min(found) > FALSE_ALARM / len(found)  # Bonferroni.


@pytest.mark.full
@pytest.mark.parametrize("way", ["tf", "xla"])
def test_prefixes_have_the_covariance_of_their_nodes(way):
    rows = prefixes(way)

    assert seems_right(rows, prefix_covariance())


@pytest.mark.full
@pytest.mark.parametrize("way", ["tf", "xla"])
def test_residuals_have_the_covariance_of_their_differences(way):
    rows = releases(way)
    differences = np.eye(ROUNDS) - np.eye(ROUNDS, k=-1)

    covariance = prefix_covariance()

    assert seems_right(rows, differences @ covariance @ differences.T)


@pytest.mark.full
def test_restarted_trees_are_independent():
    rows = prefixes(period=4)

    assert seems_right(rows, restarted_covariance(4))
    # Control: one tree.
    assert not seems_right(rows, prefix_covariance())


@pytest.mark.full
def test_the_check_can_fail():
    """Controls: the other algorithm, 3 % of the noise, no shared nodes."""
    rows = prefixes()
    right = prefix_covariance()

    assert not seems_right(rows, prefix_covariance(is_efficient=False))
    assert not seems_right(rows, right * 1.03**2)
    assert not seems_right(rows, right / 1.03**2)
    assert not seems_right(rows, np.diag(np.diag(right)))


def test_the_check_sees_a_node_that_is_drawn_twice():
    """Control: new noise, once, for the node of the first four rounds."""
    rows = prefixes().copy()
    generator = np.random.default_rng(0)
    scale = STDDEV * (2**-0.5)
    rows[4] += generator.normal(0, scale, SIZE) - generator.normal(
        0, scale, SIZE
    )

    assert not seems_right(rows, prefix_covariance())


def test_the_weights_are_those_of_unbiased_sums():
    """The oracle itself: node sums of any leaves give their prefixes."""
    leaves = np.random.default_rng(0).standard_normal(ROUNDS)
    sums = [leaves[a : a + n].sum() for a, n in nodes(ROUNDS)]

    for is_efficient in (False, True):
        np.testing.assert_allclose(
            prefix_weights(ROUNDS, is_efficient) @ sums,
            np.cumsum(leaves),
            atol=1e-12,
        )
