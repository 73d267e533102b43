"""A seed that a caller chose is in the ledger, and repeats no noise."""

import contextvars

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp.dp_queries import (
    ErrorCorrectedQuery,
    GaussianSumQuery,
    KSDenoisedQuery,
    NestedQuery,
    NormalizedQuery,
    PeriodicRoundRestartIndicator,
    RestartQuery,
    TreeResidualSumQuery,
)
from keras_dp.optimizers import DPSGD

SPECS = [tf.TensorSpec([2, 1]), tf.TensorSpec([1])]


def tree(noise_seed):
    return TreeResidualSumQuery.build_l2_gaussian_query(
        1.0, 1.0, SPECS, noise_seed=noise_seed
    )


WRAPPERS = {
    "alone": lambda query: query,
    "normalized": lambda query: NormalizedQuery(query, 2.0),
    "restarted": lambda query: RestartQuery(
        query, PeriodicRoundRestartIndicator(3)
    ),
    "nested": lambda query: NestedQuery([GaussianSumQuery(1.0, 1.0), query]),
    "denoised": lambda query: KSDenoisedQuery(query, "group"),
    "corrected": lambda query: ErrorCorrectedQuery(query, 1.0),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("noise_seed", [None, 3])
def test_wrappers_say_so(wrap, noise_seed) -> None:
    assert wrap(tree(noise_seed)).seeded == (noise_seed is not None)


@pytest.mark.parametrize("noise_seed", [None, 3])
def test_rounds_are_marked(noise_seed) -> None:
    ledger = keras_dp.PrivacyLedger.in_memory(dataset="test")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    private = keras_dp.PrivateModel(model, self_check_examples=0)
    private.compile(
        DPSGD(0.1, query=tree(noise_seed), ledger=ledger), loss="mse"
    )

    private.train_on_batch(np.ones([4, 2], "float32"), np.ones([4, 1]))

    assert ledger.rounds[0].round.seeded == (noise_seed is not None)


SEEDED = {
    "optimizer": lambda: (GaussianSumQuery(1.0, 1.0), 3),
    "query": lambda: (tree(noise_seed=3), None),
    "both": lambda: (tree(noise_seed=3), 3),
}


@pytest.mark.full
@pytest.mark.parametrize("seeded", SEEDED.values(), ids=SEEDED)
def test_two_runs_with_one_seed_do_not_have_the_same_noise(seeded) -> None:
    """Their difference would be what the data adds, without noise."""

    def noise():
        query, seed = seeded()
        ledger = keras_dp.PrivacyLedger.in_memory(dataset="test")
        model = keras.Sequential(
            [
                keras.Input((2,)),
                keras.layers.Dense(1, kernel_initializer="zeros"),
            ]
        )
        private = keras_dp.PrivateModel(model, self_check_examples=0)
        private.compile(
            DPSGD(1.0, query=query, ledger=ledger, seed=seed), loss="mse"
        )
        private.train_on_batch(np.zeros([4, 2]), np.zeros([4, 1]))
        assert ledger.rounds[0].round.seeded
        return np.concatenate([w.ravel() for w in model.get_weights()])

    # Where no test has asked for anything else.
    one, two = (contextvars.Context().run(noise) for _ in range(2))

    assert (one != two).all()
    np.testing.assert_array_equal(noise(), noise())  # Control: reproducible().
