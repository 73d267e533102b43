"""Strategies whose noise floats cannot hold are refused."""

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import CorrelatedSumQuery
from keras_dp.ledger import (
    BandedToeplitz,
    BufferedToeplitz,
    InverseToeplitz,
    LowerTriangular,
)
from keras_dp.noise import filtered_noise

ROUNDS = 40


def unstable_matrix():
    return LowerTriangular.from_matrix(
        np.eye(ROUNDS) + 2 * np.eye(ROUNDS, k=-1)
    )


@pytest.mark.parametrize(
    "strategy",
    [
        BandedToeplitz((1.0, 2.0)),
        BandedToeplitz((1.0, -1.5)),
        BufferedToeplitz((0.5,), (5.0,)),
        unstable_matrix(),
    ],
)
def test_noise_that_rounds_draws_away_is_refused(strategy) -> None:
    """Float32 lost the draws: sums of answers had no noise at all."""
    with pytest.raises(ValueError, match="times a draw"):
        CorrelatedSumQuery(strategy, 1.0, 1.0, ROUNDS, tf.TensorSpec([2]))

    CorrelatedSumQuery(strategy, 1.0, 1.0, 4, tf.TensorSpec([2]))


@pytest.mark.parametrize(
    "strategy",
    [
        BandedToeplitz((1.0,)),
        BandedToeplitz((1.0, -1.2, 0.7)),
        BufferedToeplitz((0.9, 0.2), (0.3, 0.4)),
        InverseToeplitz.square_root(4),
        LowerTriangular.from_matrix(
            np.tril(np.arange(1.0, 65.0).reshape(8, 8) % 5) + np.eye(8)
        ),
    ],
)
def test_growth_is_the_largest_row_of_the_inverse(strategy) -> None:
    inverse = np.linalg.inv(strategy.matrix(8))

    found = filtered_noise.growth(strategy.filter(), 8)

    assert found == pytest.approx(np.linalg.norm(inverse, axis=1).max())
