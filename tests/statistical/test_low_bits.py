"""The low bits of noised answers tell nothing of the sums behind them."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from keras_dp.dp_queries import (
    CorrelatedSumQuery,
    GaussianAverageQuery,
    GaussianSumQuery,
)
from keras_dp.dp_queries.summing_query import on_grid
from keras_dp.ledger import BandedToeplitz, BinaryTree
from keras_dp.noise import grid
from keras_dp.preprocessing.release import noised
from tests import low_bit_attacks as attacks

TRIALS = 100
RECORD = tf.TensorSpec([TRIALS, attacks.COORDINATES])
# Of an attacker who knows everything about Gaussian noise.
CHANCE = float(special.ndtr(0.5))
# Four standard deviations above it.
MOST = CHANCE + 4 * (0.25 / (2 * TRIALS)) ** 0.5


def answers(query: Any, step: float, kind: Any) -> Any:
    """Returns answers of a query to a sum of `step`s, one for each trial."""
    # One draw for all: each coordinate has noise of its own.
    sums = query.initial_sample_state(
        tf.zeros([TRIALS, attacks.COORDINATES], kind)
    )
    state = query.initial_global_state()
    spacing = query.derive_sample_params(state).spacing
    moved = on_grid(sums, tf.fill(sums.shape, tf.cast(step, kind)), spacing)
    return tf.cast(query.get_noised_result(moved, state).value, kind).numpy()


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        (GaussianSumQuery(1.0, 1.0), tf.float32),
        (GaussianSumQuery(0.75, 1.0), tf.float64),
        (GaussianAverageQuery(1.0, 1.0, 8.0), tf.float32),
        (CorrelatedSumQuery(BinaryTree(), 1.0, 1.0, 9, RECORD), tf.float32),
        (
            CorrelatedSumQuery(BandedToeplitz((1.0, 0.3)), 1.0, 1.0, 9, RECORD),
            tf.float32,
        ),
    ],
    ids=["sum", "in float64", "average", "tree", "correlated"],
)
def test_precision_tells_nothing(query: Any, kind: Any) -> None:
    factor = 8.0 if isinstance(query, GaussianAverageQuery) else 1.0
    pair = [factor * answers(query, step, kind) for step in (0.0, attacks.STEP)]
    assert attacks.success_rate(attacks.refuted, *pair) < MOST


def test_precision_of_statistics_tells_nothing() -> None:
    pair = [
        noised(np.full([TRIALS, attacks.COORDINATES], step), 1.0)
        for step in (0.0, attacks.STEP)
    ]
    assert attacks.success_rate(attacks.refuted, *pair) < MOST


def test_precision_of_floats_tells_all() -> None:
    noise = np.random.default_rng(0).standard_normal
    shape = 2, TRIALS, attacks.COORDINATES
    without, with_one = noise(shape).astype(np.float32)
    with_one += np.float32(attacks.STEP)
    assert attacks.success_rate(attacks.refuted, without, with_one) > 0.99


@pytest.mark.parametrize("stddev", [1e-30, 0.3, 1e30])
def test_answers_are_multiples_of_a_power_of_two(stddev: float) -> None:
    query = GaussianSumQuery(min(stddev, 1.0), stddev)
    sums = tf.constant([0.1, -1 / 3, 1e-3], tf.float64) * stddev
    answer = query.get_noised_result(sums, query.initial_global_state()).value

    steps = answer.numpy() / float(grid.spacing(stddev))

    np.testing.assert_array_equal(steps, np.rint(steps))
    assert 2.0**20 < np.abs(steps).max() < 2.0**31


def test_without_noise_sums_stay_as_they_are() -> None:
    query = GaussianSumQuery(1.0, 0.0)
    sums = tf.constant([0.1, -1e-36, 3e38])

    answer = query.get_noised_result(sums, query.initial_global_state()).value

    np.testing.assert_array_equal(answer, sums)
