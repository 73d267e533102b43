"""Scattering is an ordinary layer of Keras, without weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp import make_private
from keras_dp.layers import Scattering2D


def _images(*shape):
    return np.random.default_rng(0).random(shape).astype("float32")


class TestShapes:
    @pytest.mark.parametrize(
        ("scales", "orientations", "features"),
        [(1, 8, 9), (2, 8, 81), (3, 4, 61), (2, 1, 4)],
    )
    def test_has_the_features_of_all_orders(
        self, scales, orientations, features
    ) -> None:
        layer = Scattering2D(scales, orientations)

        found = layer(_images(2, 30, 41, 3))

        size = 30 // 2**scales, 41 // 2**scales
        assert found.shape == (2, *size, 3 * features)
        assert layer.compute_output_shape((2, 30, 41, 3)) == found.shape

    def test_channels_are_scattered_one_by_one(self) -> None:
        images, layer = _images(2, 12, 9, 3), Scattering2D(2, 3)
        alone = [layer(images[..., i : i + 1]) for i in range(3)]

        np.testing.assert_allclose(
            layer(images), np.concatenate(alone, axis=-1), atol=1e-6
        )

    def test_channels_first(self) -> None:
        images = _images(2, 12, 9, 3)
        layer = Scattering2D(2, 3, data_format="channels_first")

        found = layer(np.transpose(images, [0, 3, 1, 2]))

        expected = np.transpose(Scattering2D(2, 3)(images), [0, 3, 1, 2])
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert layer.compute_output_shape((2, 3, 12, 9)) == found.shape


class TestRefusals:
    @pytest.mark.parametrize(
        ("shape", "scales", "advice"),
        [
            ((2, 16, 28, 1), 4, "Take J=3 or less"),
            ((2, 28, 17, 1), 5, "Take J=4 or less"),
            ((2, 2, 2, 1), 1, "too small for scattering"),
        ],
    )
    def test_scales_too_deep(self, shape, scales, advice) -> None:
        with pytest.raises(ValueError, match=f"`J` must be.*{advice}"):
            Scattering2D(scales)(np.zeros(shape))

    @pytest.mark.parametrize("shape", [(2, 28, 28), (2, None, 28, 1)])
    def test_axes_that_are_missing_or_unknown(self, shape) -> None:
        with pytest.raises(ValueError, match="`images` must have three axes"):
            keras.Sequential([keras.Input(shape[1:]), Scattering2D(2)])

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"J": 0}, ValueError),
            ({"J": 2.5}, TypeError),
            ({"J": 2, "L": 0}, ValueError),
            ({"J": 2, "data_format": "last"}, ValueError),
        ],
    )
    def test_arguments(self, arguments, error) -> None:
        with pytest.raises(error, match="must be"):
            Scattering2D(**arguments)


class TestAsALayer:
    def test_is_saved_and_loaded(self, tmp_path) -> None:
        model = keras.Sequential(
            [
                keras.Input((9, 8, 1)),
                Scattering2D(1, 3, data_format="channels_last"),
            ]
        )
        images = _images(2, 9, 8, 1)

        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")

        np.testing.assert_array_equal(loaded(images), model(images))
        assert model.weights == []

    @pytest.mark.standard
    @pytest.mark.parametrize("jit_compile", [False, True])
    def test_graphs_compute_the_same(self, jit_compile) -> None:
        layer, images = Scattering2D(2, 3), _images(2, 12, 9, 2)
        graph = tf.function(layer, jit_compile=jit_compile)

        np.testing.assert_allclose(graph(images), layer(images), atol=1e-6)

    def test_of_half_precision_is_computed_in_single(self) -> None:
        images = _images(2, 12, 9, 1).astype("float16")

        half = Scattering2D(2, 3, dtype="float16")(images)

        single = Scattering2D(2, 3)(images.astype("float32"))
        assert half.dtype == "float16"
        np.testing.assert_array_equal(half, np.float16(single))

    def test_has_finite_gradients(self) -> None:
        """The modulus has none at 0, where that of a constant image is."""
        layer = Scattering2D(2, 3, dtype="float64")
        images = tf.constant(_images(2, 12, 9, 1), tf.float64)
        images = tf.concat([images, tf.zeros_like(images)], axis=0)
        along = tf.constant(_images(4, 12, 9, 1), tf.float64)

        with tf.GradientTape() as tape:
            tape.watch(images)
            total = tf.reduce_sum(layer(images)[:2] ** 2)
        found = tf.reduce_sum((tape.gradient(total, images) * along)[:2])

        ahead, behind = (
            tf.reduce_sum(layer(images + step * along)[:2] ** 2)
            for step in (1e-5, -1e-5)
        )
        np.testing.assert_allclose(found, (ahead - behind) / 2e-5, rtol=1e-6)

    @pytest.mark.full
    def test_under_a_private_model_keeps_examples_apart(self, tmp_path) -> None:
        """The graph proves it: `fit` would warn, and a warning is an error."""
        model = keras.Sequential(
            [
                keras.Input((12, 12, 2)),
                Scattering2D(2, 4),
                keras.layers.GroupNormalization(groups=5),
                keras.layers.Flatten(),
                keras.layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile("sgd", "sparse_categorical_crossentropy")
        labels = np.arange(64) % 3

        private = make_private(
            model,
            (_images(64, 12, 12, 2), labels),
            target_epsilon=8,
            delta=1e-2,
            epochs=1,
            ledger=tmp_path / "images.ledger",
            verbose=False,
        )
        private.fit(verbose=0)

        assert private.optimizer.ledger.runs
