"""A seed that a caller chose is in the ledger, and repeats no noise."""

import contextvars

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp.optimizers import DPSGD


@pytest.mark.full
def test_two_runs_with_one_seed_do_not_have_the_same_noise() -> None:
    """Their difference would be what the data adds, without noise."""

    def noise():
        ledger = keras_dp.PrivacyLedger.in_memory(dataset="test")
        model = keras.Sequential(
            [
                keras.Input((2,)),
                keras.layers.Dense(1, kernel_initializer="zeros"),
            ]
        )
        private = keras_dp.PrivateModel(model, self_check_examples=0)
        query = keras_dp.dp_queries.GaussianSumQuery(1.0, 1.0)
        private.compile(
            DPSGD(1.0, query=query, ledger=ledger, seed=3), loss="mse"
        )
        private.train_on_batch(np.zeros([4, 2]), np.zeros([4, 1]))
        assert ledger.rounds[0].round.seeded
        return np.concatenate([w.ravel() for w in model.get_weights()])

    # Where no test has asked for anything else.
    one, two = (contextvars.Context().run(noise) for _ in range(2))

    assert (one != two).all()
    np.testing.assert_array_equal(noise(), noise())  # Control: reproducible().
