"""Half precision: a fixed loss scale, and norms in float32."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp.gradients import GradientEngine
from keras_dp.gradients.records.records import (
    MaterializedRecords,
    ScaledRecords,
)
from keras_dp.sampling import PoissonBatches
from keras_dp.training.step.step_parts import resolved_loss_scale
from tests.private_models import CROSS_ENTROPY, private_of
from tests.slow_loop import flat

FEATURES, CLASSES, RECORDS = 8, 3, 600


def classified(seed):
    """Three classes, each around a centre of its own."""
    rng = np.random.default_rng(seed)
    y = rng.integers(CLASSES, size=RECORDS)
    centres = 1.5 * np.eye(CLASSES, FEATURES)
    x = centres[y] + rng.normal(size=(RECORDS, FEATURES))
    return x.astype("float32"), y.astype("int32")


def network(policy):
    keras.utils.set_random_seed(4)
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(16, activation="relu", dtype=policy),
            keras.layers.Dense(CLASSES, dtype=policy),
            keras.layers.Activation("linear", dtype="float32"),
        ]
    )


def private_model(model, noise=0.0, **options):
    query = keras_dp.GaussianAverageQuery(1.0, noise, denominator=60.0)
    return private_of(
        model,
        query,
        rate=0.5,
        seed=1,
        loss=CROSS_ENTROPY,
        metrics=["accuracy"],
        **options,
    )


@pytest.mark.parametrize(
    "policy",
    [pytest.param("mixed_bfloat16", marks=pytest.mark.full), "mixed_float16"],
)
def test_half_precision_is_as_accurate_as_float32(policy) -> None:
    """On data that was not trained on, with the same samples and noise.

    The allowance is three standard errors of a share of 600 near 0.8, though
    the two share their data and differ by far less.
    """
    accuracies = []
    for dtype in ("float32", policy):
        private = private_model(network(dtype), noise=1.0)
        batches = PoissonBatches(
            classified(0), sampling_probability=0.1, seed=2
        )
        private.fit(batches, epochs=4, verbose=0)
        _, accuracy = private.evaluate(*classified(1), verbose=0)
        accuracies.append(accuracy)

    assert accuracies[0] > 0.7  # Of three classes: something was learnt.
    assert abs(accuracies[0] - accuracies[1]) < 0.05


class TestTheLossScale:
    @pytest.mark.parametrize(
        ("policy", "scale"),
        [("float32", 1), ("mixed_bfloat16", 1), ("mixed_float16", 1024)],
    )
    def test_follows_the_precision_of_the_layers(self, policy, scale) -> None:
        assert private_model(network(policy)).loss_scale == scale
        assert resolved_loss_scale(2.0, network(policy)) == 2

    @pytest.mark.parametrize("wrong", [0.0, -2.0, 3.0, 0.5, 2.0**16, np.inf])
    def test_must_be_a_power_of_two(self, wrong) -> None:
        with pytest.raises(ValueError, match="`loss_scale` must be"):
            resolved_loss_scale(wrong, network("mixed_float16"))

    def test_saves_gradients_that_float16_rounds_to_zero(self) -> None:
        """Losses so small that their gradients are below 2^-25."""
        model = network("mixed_float16")
        x, _ = classified(0)
        engine = GradientEngine(model)

        def norms(scale):
            result = engine.gradients(
                tf.constant(x[:4]),
                lambda outputs: tf.reduce_sum(outputs, axis=1) * 2.0**-26,
                4,
                loss_scale=scale,
            )
            squares = tf.add_n([r.squared_norms() for r in result.records])
            return np.sqrt(squares.numpy())

        reference = GradientEngine(network("float32"))
        expected = reference.gradients(
            tf.constant(x[:4]), lambda outputs: tf.reduce_sum(outputs, 1), 4
        )
        squares = tf.add_n([r.squared_norms() for r in expected.records])
        expected_norms = np.sqrt(squares.numpy()) * 2.0**-26

        assert (norms(1.0) == 0).all()  # Control: without, nothing is left.
        # Half precision has 11 bits.
        np.testing.assert_allclose(norms(1024.0), expected_norms, rtol=1e-2)

    @pytest.mark.full
    def test_an_example_that_overflows_counts_as_zero(self) -> None:
        """And it alone: the others' update is what it would be without."""
        x, y = classified(0)
        far = x.copy()
        far[0] = 6e4  # Its products leave float16.
        updates = []
        for inputs, targets in ((far[:8], y[:8]), (x[1:8], y[1:8])):
            private = private_model(network("mixed_float16"))
            before = flat(private)
            private.train_on_batch(inputs, targets)
            updates.append(flat(private) - before)

        assert np.isfinite(updates[0]).all()
        assert np.abs(updates[1]).max() > 1e-3
        np.testing.assert_allclose(updates[0], updates[1], rtol=0, atol=1e-5)


class TestScaledRecords:
    def test_answer_as_records_that_were_multiplied(self) -> None:
        """A power of two rounds nothing: equal bit by bit."""
        gradients = np.random.default_rng(0).normal(size=(6, 2, 3))
        gradients = tf.constant(gradients, tf.float32)
        scaled = ScaledRecords(MaterializedRecords(gradients), 0.25)
        plain = MaterializedRecords(gradients * 0.25)
        weights = tf.constant([1.0, 0.0, 0.5, 2.0, 0.25, 1.0])
        some = tf.constant([4, 1])

        for one, two in (
            (scaled, plain),
            (scaled.grouped(2, weights), plain.grouped(2, weights)),
        ):
            np.testing.assert_array_equal(one.materialize(), two.materialize())
            np.testing.assert_array_equal(
                one.squared_norms(), two.squared_norms()
            )
        np.testing.assert_array_equal(
            scaled.materialize(some), plain.materialize(some)
        )
        np.testing.assert_array_equal(
            scaled.weighted_sum(weights), plain.weighted_sum(weights)
        )
