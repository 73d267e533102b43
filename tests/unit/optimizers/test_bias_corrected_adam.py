"""Adam less the variance of the noise, against its definition."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp.dp_queries import (
    AdaptiveClipSumQuery,
    GaussianAverageQuery,
    GaussianSumQuery,
    KSDenoisedQuery,
    NestedQuery,
)
from keras_dp.optimizers import DPAdam
from keras_dp.optimizers.bias_corrected_adam import BiasCorrectedAdam

X = np.random.default_rng(0).normal(size=[4, 3]).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5]], "float32")


def ledger():
    return keras_dp.PrivacyLedger.in_memory(dataset="test")


def private_model(query, groups=None, **options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    private = keras_dp.PrivateModel(model, self_check_examples=0)
    private.compile(
        DPAdam(
            0.1, query=query, ledger=ledger(), seed=2, groups=groups, **options
        ),
        loss="mse",
    )
    return private


def trained(private, rounds=5):
    with keras_dp.noise.reproducible():
        for _ in range(rounds):
            private.train_on_batch(X, Y)
    return [np.array(w) for w in private.model.get_weights()]


def by_definition(gradients, variances, floor, rate, beta_1=0.9, beta_2=0.999):
    """Returns the sum of all updates, in float64, with unrolled averages."""
    weight = np.zeros_like(gradients[0])
    for t in range(1, len(gradients) + 1):
        ages = np.arange(t)[::-1]
        w1 = beta_1**ages * (1 - beta_1) / (1 - beta_1**t)
        w2 = beta_2**ages * (1 - beta_2) / (1 - beta_2**t)
        m = sum(w * g for w, g in zip(w1, gradients, strict=False))
        v = sum(w * g**2 for w, g in zip(w2, gradients, strict=False))
        u = sum(w * s for w, s in zip(w2, variances, strict=False))
        weight -= rate * m / np.sqrt(np.maximum(v - u, floor * u))
    return weight


class TestTheOptimizer:
    """Its updates are those of the paper."""

    @pytest.mark.parametrize("floor", [1e-3, 0.1, 2.0])
    def test_follows_its_definition_while_the_noise_changes(self, floor):
        draws = np.random.default_rng(3)
        variances = [4.0, 1.0, 0.25, 0.25, 9.0, 1.0]
        gradients = [
            np.sqrt(s) * draws.normal(size=5) + np.arange(5) for s in variances
        ]
        adam = BiasCorrectedAdam(0.1, floor=floor, epsilon=1e-12)
        weight = keras.Variable(np.zeros(5, "float32"))
        adam.build([weight])

        for gradient, variance in zip(gradients, variances, strict=True):
            adam.observe_noise([tf.constant(variance, tf.float64)])
            adam.apply([tf.constant(gradient, tf.float32)])

        expected = by_definition(gradients, variances, floor, 0.1)
        np.testing.assert_allclose(np.array(weight), expected, rtol=1e-4)

    def test_is_adam_without_noise(self) -> None:
        gradients = np.random.default_rng(4).normal(size=[5, 3])
        found = []
        for adam in (
            BiasCorrectedAdam(0.1, floor=0.5),
            keras.optimizers.Adam(0.1),
        ):
            weight = keras.Variable(np.zeros(3, "float32"))
            adam.build([weight])
            for gradient in gradients.astype("float32"):
                adam.apply([tf.constant(gradient)])
            found.append(np.array(weight))

        np.testing.assert_allclose(*found, rtol=1e-6)

    @pytest.mark.parametrize("floor", [0.0, -1.0, float("nan"), float("inf")])
    def test_refuses_a_floor(self, floor) -> None:
        with pytest.raises(ValueError, match="bias_correction"):
            BiasCorrectedAdam(floor=floor)

    @pytest.mark.parametrize(
        "options", [{"amsgrad": True}, {"clipnorm": 1.0}, {"clipvalue": 1.0}]
    )
    def test_refuses_what_changes_the_noise(self, options) -> None:
        with pytest.raises(ValueError, match="bias_correction"):
            BiasCorrectedAdam(floor=0.1, **options)


class TestTraining:
    """The optimizer knows the noise of each answer."""

    def variances(self, private):
        return [float(v) for v in private.optimizer.inner._variances]

    def test_observes_the_noise_of_an_average(self) -> None:
        private = private_model(
            GaussianAverageQuery(1.0, 3.0, denominator=6),
            bias_correction=0.1,
        )

        trained(private, rounds=2)

        expected = (3 / 6) ** 2 * (1 - 0.999**2)
        np.testing.assert_allclose(
            self.variances(private), [expected] * 2, rtol=1e-4
        )

    def test_observes_the_noise_of_each_group(self) -> None:
        query = NestedQuery(
            {"b": GaussianSumQuery(1.0, 4.0), "k": GaussianSumQuery(1.0, 2.0)}
        )
        private = private_model(
            query, groups={"b": "bias", "k": ...}, bias_correction=0.1
        )

        trained(private, rounds=1)

        np.testing.assert_allclose(  # The kernel comes first in the model.
            self.variances(private), [4 * 0.001, 16 * 0.001], rtol=1e-4
        )

    def test_observes_noise_that_adapts(self) -> None:
        query = AdaptiveClipSumQuery(8.0, 0.5, 1e-5, expected_num_records=4)
        private = private_model(query, bias_correction=0.1)
        expected = 0.0
        for _ in range(3):
            stddev = float(
                private.optimizer.read_state()["gradients"].sum_state.stddev
                if private.optimizer.built
                else 4.0
            )
            expected += 0.001 * (stddev**2 - expected)
            trained(private, rounds=1)

        assert stddev != 4.0
        np.testing.assert_allclose(
            self.variances(private), [expected] * 2, rtol=1e-4
        )

    def test_differs_from_adam_only_by_the_correction(self) -> None:
        def weights(stddev, **options):
            query = GaussianAverageQuery(1.0, stddev, denominator=4)
            return trained(private_model(query, **options))

        for one, two in zip(
            weights(0.0), weights(0.0, bias_correction=0.1), strict=True
        ):
            np.testing.assert_allclose(one, two, rtol=1e-5)
        noisy = weights(1.0)[0], weights(1.0, bias_correction=0.1)[0]
        assert not np.allclose(*noisy)

    def test_refuses_a_query_of_unknown_noise_before_the_first_round(self):
        query = KSDenoisedQuery(GaussianAverageQuery(1.0, 1.0, denominator=4))
        private = private_model(query, bias_correction=0.1)

        with pytest.raises(TypeError, match=r"bias_correction.*Received.*Take"):
            private.train_on_batch(X, Y)

        assert not list(private.optimizer.ledger.rounds)

    def test_is_saved_with_its_averages(self, tmp_path) -> None:
        query = GaussianAverageQuery(1.0, 3.0, denominator=6)
        private = private_model(query, bias_correction=0.2)
        trained(private, rounds=2)
        private.save(tmp_path / "model.keras")

        loaded = keras.saving.load_model(tmp_path / "model.keras").optimizer

        assert type(loaded) is DPAdam
        assert loaded.inner.floor == 0.2
        assert [float(v) for v in loaded.inner._variances] == (
            self.variances(private)
        )
