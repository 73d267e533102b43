"""Strategies that floats cannot hold, and groups of different scales."""

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
from keras_dp.noise import filtered_noise, reproducible

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


def test_groups_are_clipped_together_in_units_of_their_scales() -> None:
    """As one query over scaled records, whose answers are scaled back."""
    scales = {"a": 0.25, "b": 8.0}
    records = {
        "a": tf.constant([[3.0, -1.0], [0.1, 0.0]]),
        "b": tf.constant([[20.0], [-5.0]]),
    }
    specs = {"a": tf.TensorSpec([2]), "b": tf.TensorSpec([1])}
    strategy = BandedToeplitz((1.0, 0.5))

    def answers(records, scales):
        """Returns the answers of two rounds."""
        query = CorrelatedSumQuery(strategy, 1.5, 2.0, 9, specs, scales)
        query = CorrelatedSumQuery.from_config(query.get_config())
        with reproducible():
            state = query.initial_global_state(seed=3)
        values = []
        for _ in range(2):
            sample = query.accumulate_records(
                query.derive_sample_params(state),
                query.initial_sample_state(specs),
                records,
            )
            result = query.get_noised_result(sample, state)
            values.append(result.value)
            state = result.global_state
        return values

    inverse = {name: records[name] / scales[name] for name in scales}
    for got, want in zip(
        answers(records, scales), answers(inverse, None), strict=True
    ):
        for name, scale in scales.items():
            np.testing.assert_allclose(
                got[name] / scale, want[name], rtol=1e-5, atol=1e-5
            )
            assert np.abs(want[name]).max() > 0.1
