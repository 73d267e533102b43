"""The noise of rounds has the covariance that their strategy gives it.

Seeds are fixed. Had they been free, each check would fail for a correct
library with probability `FALSE_ALARM`. Every check is also shown to fail where
it ought.
"""

import numpy as np
import pytest
import tensorflow as tf

from keras_dp import _reproducible
from keras_dp.dp_queries import CorrelatedSumQuery
from keras_dp.ledger import (
    BandedToeplitz,
    BufferedToeplitz,
    InverseToeplitz,
    LowerTriangular,
)
from tests.statistical.test_tree_noise import seems_right

SIZE, ROUNDS, STDDEV = 20_000, 7, 3.0
STRATEGIES = {
    "independent": BandedToeplitz((1.0,)),
    "banded": BandedToeplitz((1.0, 0.7, 0.4)),
    "buffers": BufferedToeplitz((0.9, 0.4), (0.3, 0.2)),
    "square root": InverseToeplitz.square_root(4),
    "subtracting": InverseToeplitz.subtracting(0.8),
    "matrix": LowerTriangular.from_matrix(
        np.tril(np.arange(49.0).reshape(7, 7) / 49) + np.eye(7)
    ),
}


def releases(strategy, way="tf"):
    """Returns the releases of empty samples, `[ROUNDS, SIZE]`."""
    spec = [tf.TensorSpec([SIZE - 5]), tf.TensorSpec([5, 1])]
    query = CorrelatedSumQuery(strategy, STDDEV, 1.0, ROUNDS, spec)
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


@pytest.mark.full
@pytest.mark.parametrize("way", ["tf", "xla"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_noise_has_the_covariance_of_its_strategy(name, way) -> None:
    strategy = STRATEGIES[name]

    assert seems_right(releases(strategy, way), covariance(strategy))


@pytest.mark.full
def test_and_not_that_of_another_strategy() -> None:
    rows = releases(BandedToeplitz((1.0, 0.7, 0.4)))

    assert not seems_right(rows, covariance(BandedToeplitz((1.0, 0.7, 0.35))))
