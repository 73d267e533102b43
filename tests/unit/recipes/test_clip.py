"""The clip follows from how long the gradients of a loss can be."""

import keras
import pytest

from keras_dp.recipes.clip import clip_of, positions_of


def model(*shape):
    inputs = keras.Input((3,))
    size = 1
    for each in shape:
        size *= each
    rows = keras.layers.Dense(size)(inputs)
    return keras.Model(inputs, keras.layers.Reshape(shape)(rows))


class TestClip:
    @pytest.mark.parametrize(
        ("loss", "clip"),
        [
            ("mse", 2**-5),
            (["mse"], 2**-5),
            ({"a": "mae", "b": keras.losses.LogCosh()}, 2**-5),
            ({"a": "mae", "b": "binary_crossentropy"}, 1),
            ("sparse_categorical_crossentropy", 1),
            (lambda y, outputs: outputs, 1),  # A penalty.
            ([], 1),
            (lambda y, outputs: keras.ops.mean((y - outputs) ** 2), 2**-5),
            (lambda y, p: 3 * keras.ops.mean(abs(y - p), -1), 2**-5),
            (["mse", lambda y, outputs: keras.ops.mean(outputs)], 2**-5),
            (lambda y, p: keras.losses.categorical_crossentropy(y, p), 1),
            (lambda y, p: 1 / 0, 1),
        ],
    )
    def test_is_small_where_errors_are_averaged(self, loss, clip) -> None:
        assert clip_of(None, loss) == (clip, None)

    @pytest.mark.parametrize(
        ("shape", "clip"),
        [
            ((1,), 1),
            ((2,), 1),
            ((4,), 1 / 2),
            ((40,), 1 / 8),
            ((28, 28), 1 / 32),
        ],
        ids=str,
    )
    def test_is_smaller_for_a_mean_of_many_outputs(self, shape, clip) -> None:
        loss = keras.losses.BinaryCrossentropy()

        assert clip_of(None, loss, model(*shape)) == (clip, None)

    @pytest.mark.parametrize(
        "loss",
        [
            "sparse_categorical_crossentropy",
            keras.losses.CategoricalCrossentropy(from_logits=True),
        ],
        ids=["sparse", "one-hot"],
    )
    @pytest.mark.parametrize(
        ("shape", "clip", "positions"),
        [
            ((10,), 1, 1),
            ((20, 10), 1 / 4, 20),
            ((14, 14, 10), 1 / 16, 196),
        ],
        ids=str,
    )
    def test_is_smaller_for_classes_at_many_positions(
        self, loss, shape, clip, positions
    ) -> None:
        made = model(*shape)

        assert clip_of(None, loss, made) == (clip, None)
        assert positions_of(loss, made) == positions
        # Control: outputs of other losses are no positions.
        assert positions_of("binary_crossentropy", made) == 1
        assert positions_of({}, made) == 1

    def test_is_that_of_the_loss_beside_a_penalty(self) -> None:
        """The penalty says nothing of how long the gradients are."""
        inputs = keras.Input((3,))
        both = keras.Model(
            inputs, [keras.layers.Dense(100)(inputs) for _ in range(2)]
        )

        def penalty(y, outputs):
            return keras.ops.mean(keras.ops.abs(outputs), axis=-1)

        def entropy(y, outputs):
            return 2 * keras.losses.binary_crossentropy(y, outputs)

        for loss in ("binary_crossentropy", entropy):
            assert clip_of(None, [loss, penalty], both) == (1 / 8, None)
