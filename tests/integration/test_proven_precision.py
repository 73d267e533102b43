"""Trainings whose bounds hold in floating point."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.errors import GradientCheckError
from keras_dp.ledger import GaussianSum, ProvenGaussianSum
from keras_dp.reporting import make_report
from tests.private_models import CROSS_ENTROPY, private_of

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 6)).astype(np.float32)
Y = GENERATOR.integers(0, 2, 60)


@keras.saving.register_keras_serializable()
class TinyMean(layers.Layer):
    """Adds so little of the other examples that only last bits change."""

    def call(self, inputs):
        return inputs + 1e-6 * tf.reduce_mean(inputs, axis=0, keepdims=True)


def trained(precision, *extra, jit_compile=False, rounds=3):
    """Returns the ledger of a training, whose samples take some batches."""
    model = private_of(
        keras.Sequential(
            [keras.Input((6,)), *extra, layers.Dense(4), layers.Dense(2)]
        ),
        keras_dp.GaussianAverageQuery(
            1.0, noise_multiplier=1.0, denominator=30, precision=precision
        ),
        checks=2,
        loss=CROSS_ENTROPY,
        jit_compile=jit_compile,
        private_metrics={},
    )
    batches = keras_dp.PoissonBatches(
        (X, Y), sampling_probability=0.5, physical_batch_size=8
    )
    model.fit(batches, steps_per_epoch=rounds, verbose=0)
    return model.optimizer.ledger


@pytest.fixture(scope="module")
def ledgers():
    return {
        "proven": trained("proven"),
        "compiled": trained("proven", jit_compile=True),
        "assumed": trained("assumed"),
    }


class TestTheLedger:
    def test_says_that_the_bounds_are_proven(self, ledgers) -> None:
        for name in ("proven", "compiled"):
            queries = [each.round.queries for each in ledgers[name].rounds]
            (names,) = {tuple(query.name for query in own) for own in queries}
            assert "gradients" in names
            kinds = {type(query) for own in queries for query in own}
            assert ProvenGaussianSum in kinds

    def test_says_that_others_are_assumed(self, ledgers) -> None:
        """The control."""
        kinds = {
            type(query)
            for each in ledgers["assumed"].rounds
            for query in each.round.queries
        }
        assert ProvenGaussianSum not in kinds
        assert GaussianSum in kinds

    def test_is_reported(self, ledgers) -> None:
        pages = {
            name: str(make_report(ledger, delta=1e-5))
            for name, ledger in ledgers.items()
        }
        assert "rounding is included by proof" in pages["proven"]
        assert "Finite precision: assumed for 3 rounds" in pages["assumed"]


class TestIsolation:
    def test_a_last_bit_is_found(self) -> None:
        with pytest.raises(GradientCheckError, match="same bits"):
            trained("proven", TinyMean(), rounds=1)

    def test_is_not_asked_for_where_nothing_is_proven(self) -> None:
        """The control: the tolerance is larger than last bits."""
        trained("assumed", TinyMean(), rounds=1)


@pytest.mark.parametrize(
    "name", ["TF_SET_ONEDNN_FPMATH_MODE", "ONEDNN_DEFAULT_FPMATH_MODE"]
)
def test_short_products_are_refused(name, monkeypatch) -> None:
    monkeypatch.setenv(name, "BF16")

    with pytest.raises(keras_dp.errors.PrivateTrainingError, match=name):
        trained("assumed", rounds=1)


class TestMakePrivate:
    def model(self):
        model = keras.Sequential([keras.Input((6,)), layers.Dense(2)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
        return model

    def test_passes_the_precision_on(self) -> None:
        ledger = keras_dp.PrivacyLedger.in_memory(dataset="numbers")
        private = keras_dp.make_private(
            self.model(),
            (X, Y),
            target_epsilon=8.0,
            epochs=1,
            batch_size=30,
            delta=1e-3,
            ledger=ledger,
            noise="proven",
            verbose=False,
        )
        private.fit(verbose=0)

        (round_, *_) = ledger.rounds
        assert isinstance(round_.round.queries[0], ProvenGaussianSum)
