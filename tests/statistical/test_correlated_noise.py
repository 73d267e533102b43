"""The noise of rounds has the covariance that their strategy gives it.

Seeds are fixed. Had they been free, each check would fail for a correct
library with probability `FALSE_ALARM`. Every check is also shown to fail where
it ought.
"""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_dp import _reproducible
from keras_dp.dp_queries import CorrelatedSumQuery
from keras_dp.ledger import (
    BandedToeplitz,
    BinaryTree,
)

FALSE_ALARM = 1e-6
SIZE, ROUNDS, STDDEV = 20_000, 7, 3.0
STRATEGIES = {
    "independent": BandedToeplitz((1.0,)),
    "banded": BandedToeplitz((1.0, 0.7, 0.4)),
    "tree": BinaryTree(),
}


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


def releases(strategy, way="tf", restart_after=None):
    """Returns the releases of empty samples, `[ROUNDS, SIZE]`."""
    spec = [tf.TensorSpec([SIZE - 5]), tf.TensorSpec([5, 1])]
    query = CorrelatedSumQuery(
        strategy, STDDEV, 1.0, ROUNDS, spec, restart_after=restart_after
    )
    zeros = [tf.zeros(each.shape) for each in spec]

    def one_round(state):
        return query.get_noised_result(zeros, state)

    one_round = tf.function(one_round, jit_compile=way == "xla")
    with _reproducible.reproducible():
        state = query.initial_global_state(11)
    rows = []
    for _ in range(ROUNDS):
        value, state, _ = one_round(state)
        parts = [part.numpy().ravel() for part in value]
        rows.append(np.concatenate(parts).astype(np.float64))
    value, *_ = one_round(state)
    assert all(np.isnan(part).all() for part in value)  # One round too many.
    return np.array(rows)


def covariance(strategy):
    inverse = np.linalg.inv(strategy.matrix(ROUNDS))
    return STDDEV**2 * inverse @ inverse.T


# XLA takes half a minute for each.
XLA = [
    pytest.param(
        name, "xla", marks=() if name == "banded" else pytest.mark.nightly
    )
    for name in STRATEGIES
]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "way"), [*((name, "tf") for name in STRATEGIES), *XLA]
)
def test_noise_has_the_covariance_of_its_strategy(name, way) -> None:
    strategy = STRATEGIES[name]

    assert seems_right(releases(strategy, way), covariance(strategy))


@pytest.mark.full
def test_and_not_that_of_another_strategy() -> None:
    """Controls: another coefficient, 3 % of the noise, independent rounds."""
    right = covariance(BandedToeplitz((1.0, 0.7, 0.4)))
    rows = releases(BandedToeplitz((1.0, 0.7, 0.4)))

    assert not seems_right(rows, covariance(BandedToeplitz((1.0, 0.7, 0.35))))
    assert not seems_right(rows, right * 1.03**2)
    assert not seems_right(rows, np.diag(np.diag(right)))


@pytest.mark.full
@pytest.mark.parametrize("name", ["tree", "banded"])
def test_mechanisms_after_a_restart_are_independent(name) -> None:
    """Of 3, 3 and 1 rounds: nothing of a buffer is heard in the next one."""
    whole = covariance(STRATEGIES[name])
    restarted = np.zeros_like(whole)
    for first in range(0, ROUNDS, 3):
        block = slice(first, first + 3)
        restarted[block, block] = whole[:3, :3][
            : ROUNDS - first, : ROUNDS - first
        ]

    rows = releases(STRATEGIES[name], restart_after=3)

    assert seems_right(rows, restarted)
    # Control: one mechanism.
    assert not seems_right(rows, whole)
