"""BatchNormalization by statistics that are released privately."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.dp_queries import GaussianAverageQuery
from keras_dp.errors import PrivateTrainingError, UnsupportedLayerError
from keras_dp.gradients import GradientEngine
from keras_dp.ledger import GaussianSum
from keras_dp.sampling import PoissonBatches
from tests.private_models import CROSS_ENTROPY, private_of
from tests.slow_loop import loop

RECORDS = 64


def images(records=RECORDS):
    generator = np.random.default_rng(0)
    sizes = np.array([1.0, 4.0, 0.2]), np.array([3.0, -1.0, 0.0])
    x = generator.normal(size=(records, 6, 6, 3)) * sizes[0] + sizes[1]
    return x.astype("float32"), generator.integers(0, 2, size=records)


def stack(*hidden):
    inputs = keras.Input((6, 6, 3))
    return keras.Sequential([inputs, *hidden, layers.Dense(2)])


def convolutional(**options):
    return stack(
        layers.BatchNormalization(**options),
        layers.Conv2D(2, 3),
        layers.BatchNormalization(momentum=0.5),
        layers.ReLU(),
        layers.GlobalAveragePooling2D(),
    )


def dense():
    normalization = layers.BatchNormalization(center=False)
    return stack(layers.Flatten(), layers.Dense(4), normalization)


class Shift(layers.Layer):
    """Owns a weight beside its normalization, so that it is one leaf."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner = layers.BatchNormalization(
            momentum=0.5, center=False, scale=False
        )

    def build(self, shape):
        self.shift = self.add_weight(shape=(shape[-1],), name="shift")
        self.inner.build(shape)

    def call(self, inputs, training=None):
        return self.inner(inputs, training=training) + self.shift


def holding():
    return stack(Shift(), layers.Flatten())


def other_axis():
    return stack(
        layers.Permute((3, 1, 2)),
        layers.BatchNormalization(axis=1),
        layers.Flatten(),
    )


def called_twice():
    shared = layers.BatchNormalization()
    inputs = keras.Input((6, 6, 3))
    hidden = shared(layers.Conv2D(3, 1)(shared(inputs)))
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(hidden)))


MODELS = [convolutional, dense, other_axis, called_twice]


def query(stddev=0.0, clip=1e3, denominator=RECORDS):
    return GaussianAverageQuery(clip, stddev, denominator)


def private_model(model, statistics=None, rate=0.0, ledger=None, **options):
    return private_of(
        model,
        query(1.0, 1.0),
        ledger,
        rate=rate,
        loss=CROSS_ENTROPY,
        batch_statistics=statistics or query(),
        **options,
    )


def normalizations(model):
    return [
        layer
        for layer in model.layers
        if isinstance(layer, layers.BatchNormalization)
    ]


def disturb(model) -> None:
    """Gives every layer statistics that are not those at the start."""
    generator = np.random.default_rng(5)
    for layer in normalizations(model):
        shape = layer.moving_mean.shape
        layer.moving_mean.assign(generator.normal(size=shape))
        layer.moving_variance.assign(generator.uniform(0.5, 3, size=shape))
        if layer.gamma is not None:
            layer.gamma.assign(generator.uniform(0.5, 2, size=shape))


class TestGradients:
    @pytest.mark.full
    @pytest.mark.parametrize(
        ("make", "mode"),
        [*((make, "eager") for make in MODELS), (called_twice, "jit")],
    )
    def test_are_those_of_each_example_alone(self, make, mode) -> None:
        keras.utils.set_random_seed(1)
        model = make()
        disturb(model)
        x, _ = images(4)
        engine = GradientEngine(model, releases_statistics=True)

        def gradients(x):
            records = engine.gradients(
                x, lambda out: tf.reduce_sum(tf.square(out), axis=1), 4
            ).records
            return [r.materialize() for r in records]

        if mode == "jit":
            gradients = tf.function(gradients, jit_compile=True)
        got = gradients(tf.constant(x))

        expected = loop(
            lambda x: tf.reduce_sum(tf.square(model(x, training=False))),
            model.trainable_variables,
            x,
        )
        for mine, theirs in zip(got, expected, strict=True):
            for one, other in zip(np.asarray(mine), theirs, strict=True):
                # Rounding of float32 sums, relative to the largest entry.
                scale = np.abs(other).max() + 1e-6
                assert np.abs(one - other).max() < 1e-4 * scale


class TestStatistics:
    @pytest.mark.full
    def test_without_noise_move_as_those_of_the_batch(self) -> None:
        """As Keras's own, but for the order: noised sums come afterwards."""
        x, y = images()
        model = convolutional(momentum=0.9)
        first = normalizations(model)[0]
        private = private_model(model)
        mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))

        private.train_on_batch(x, y)

        np.testing.assert_allclose(first.moving_mean, 0.1 * mean, rtol=1e-4)
        # At most fourfold a round: the true variance of one channel is 16.
        wide = 1 + first.epsilon
        grown = np.clip(variance, wide / 4, 4 * wide)
        np.testing.assert_allclose(
            first.moving_variance, 0.9 + 0.1 * grown, rtol=2e-3
        )

    @pytest.mark.parametrize(
        ("make", "mode"),
        [
            (convolutional, "eager"),
            pytest.param(holding, "graph", marks=pytest.mark.full),
            pytest.param(holding, "jit", marks=pytest.mark.nightly),
        ],
    )
    def test_only_change_by_what_is_released(self, make, mode) -> None:
        """With a clip of 0 and no noise that is nothing, whatever the data."""
        x, y = images()
        model, after = make(), []
        private = private_model(
            model,
            query(clip=0.0),
            run_eagerly=mode == "eager",
            jit_compile=mode == "jit",
        )
        before = model.get_weights()
        for images_ in (x, 5 * x + 3):
            model.set_weights(before)
            private.fit(images_, y, batch_size=RECORDS // 2, verbose=0)
            after.append([v.numpy() for v in model.non_trainable_variables])

        for one, two in zip(*after, strict=True):
            if one.dtype.kind == "f":  # States of seeds differ.
                np.testing.assert_array_equal(one, two)

    def test_are_bounded_by_the_clip(self) -> None:
        """One absurd image moves them as little as any other."""
        x, y = images()
        x[0] = 1e10
        model = convolutional(momentum=0.0)

        private_model(model, query(clip=1.0)).train_on_batch(x, y)

        assert np.abs(normalizations(model)[0].moving_mean.numpy()).max() < 1.1


class TestTraining:
    @pytest.mark.parametrize(
        "options",
        [{}, pytest.param({"jit_compile": True}, marks=pytest.mark.nightly)],
        ids=["graph", "jit"],
    )
    def test_records_statistics_in_the_round_of_the_gradients(
        self, options
    ) -> None:
        ledger = keras_dp.PrivacyLedger.in_memory(dataset="test")
        private = private_model(
            convolutional(), query(2.0, 3.0), 0.1, ledger, checks=4, **options
        )
        batches = PoissonBatches(
            images(), sampling_probability=0.5, physical_batch_size=20
        )

        private.fit(batches, epochs=2, verbose=0)

        ((round_, count),) = ledger.rounds
        assert count == 4
        assert round_.queries == (
            GaussianSum("gradients", 1.0, 1.0),
            GaussianSum("statistics", 3.0, 2.0),
        )

    @pytest.mark.parametrize(
        "layer",
        [
            layers.BatchNormalization(renorm=True),
            layers.BatchNormalization(synchronized=True),
            type("Own", (layers.BatchNormalization,), {})(),
        ],
    )
    def test_refuses_other_kinds_of_layer(self, layer) -> None:
        model = keras.Sequential([keras.Input((3,)), layer, layers.Dense(2)])

        with pytest.raises(UnsupportedLayerError, match="plain"):
            GradientEngine(model, releases_statistics=True)

    def test_refuses_a_layer_that_is_called_without_training(self) -> None:
        """Its statistics would move, which they do not in Keras."""

        class Transferring(keras.Model):
            def __init__(self):
                super().__init__()
                self.norm = layers.BatchNormalization(name="still")
                self.head = layers.Dense(2)

            def call(self, inputs):
                return self.head(self.norm(inputs, training=False))

        model = Transferring()
        model(tf.ones([2, 3]))
        engine = GradientEngine(model, releases_statistics=True)

        with pytest.raises(UnsupportedLayerError, match=r"still.*Freeze"):
            engine.call(tf.ones([2, 3]))

    def test_refuses_a_loop(self) -> None:
        """Statistics of a step of a loop cannot be kept."""

        class Looping(layers.Layer):
            def __init__(self):
                super().__init__()
                self.inner = layers.BatchNormalization()

            def build(self, shape):
                self.inner.build((shape[0], shape[2]))

            def call(self, inputs, training=None):
                steps = tf.transpose(inputs, [1, 0, 2])
                steps = tf.map_fn(
                    lambda step: self.inner(step, training=training), steps
                )
                return tf.reduce_sum(steps, axis=0)

        model = keras.Sequential([keras.Input((4, 3)), Looping()])
        engine = GradientEngine(model, releases_statistics=True)

        @tf.function
        def gradients(x):
            return engine.gradients(x, lambda out: out[:, 0], 2).statistics

        with pytest.raises(UnsupportedLayerError, match="inside a loop"):
            gradients(tf.ones([2, 4, 3]))

    @pytest.mark.full
    @pytest.mark.parametrize("eager", [False, True])
    def test_notices_layers_that_are_frozen_or_thawed(self, eager) -> None:
        x, y = images()
        model = convolutional(center=False, scale=False)
        private = private_model(model, run_eagerly=eager)
        private.fit(x, y, verbose=0)

        normalizations(model)[0].trainable = False

        with pytest.raises(PrivateTrainingError, match="compile"):
            private.fit(x, y, verbose=0)

    @pytest.mark.parametrize("built", [True, False])
    def test_has_no_plan_without_such_layers(self, built) -> None:
        model = keras.Sequential([layers.BatchNormalization()])
        if built:
            model.build((None, 3))
            model.layers[0].trainable = False

        with pytest.raises(PrivateTrainingError, match="must be built"):
            keras_dp.training.plan_batch_statistics(
                model, noise_multiplier=1.0, denominator=1
            )

    def test_refuses_a_mask(self) -> None:
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Embedding(5, 3, mask_zero=True),
                layers.BatchNormalization(),
                layers.GlobalAveragePooling1D(),
            ]
        )
        engine = GradientEngine(model, releases_statistics=True)

        with pytest.raises(UnsupportedLayerError, match="mask"):
            engine.call(tf.ones([2, 4], tf.int32))
