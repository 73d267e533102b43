"""Gradients and batch statistics share the budget of the gradients alone."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_dp
from keras_dp.accountants import Fourier
from keras_dp.errors import PrivateTrainingError
from keras_dp.ledger import GaussianSum, PrivacyLedger
from tests.private_models import private_of


def model():
    return keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(6),
            layers.BatchNormalization(momentum=0.5),
            layers.Dense(1),
        ]
    )


@pytest.mark.full
def test_two_queries_cost_what_one_did() -> None:
    x = np.random.default_rng(0).normal(size=(40, 5)).astype("float32")
    trained = model()
    plan = keras_dp.training.plan_batch_statistics(
        trained, noise_multiplier=2.0, denominator=10
    )
    query = keras_dp.GaussianAverageQuery(
        0.5, 0.5 * plan.noise_multiplier, denominator=10
    )
    private = private_of(trained, query, batch_statistics=plan.query)
    private.fit(
        keras_dp.PoissonBatches((x, x[:, :1]), sampling_probability=0.25),
        epochs=2,
        verbose=0,
    )

    alone = PrivacyLedger.in_memory(dataset="test")
    ledger = private.optimizer.ledger
    ((round_, count),) = ledger.rounds
    alone.record(round_.sampling, [GaussianSum("alone", 0.5, 1.0)], count)
    assert len(round_.queries) == 2
    np.testing.assert_allclose(
        Fourier().epsilon(ledger, delta=1e-5),
        Fourier().epsilon(alone, delta=1e-5),
        rtol=1e-9,
    )


def test_a_model_without_such_layers_is_refused() -> None:
    frozen = model()
    frozen.layers[1].trainable = False

    for each in (frozen, keras.Sequential([layers.BatchNormalization()])):
        with pytest.raises(PrivateTrainingError, match="must be built"):
            keras_dp.training.plan_batch_statistics(
                each, noise_multiplier=1.0, denominator=1
            )
