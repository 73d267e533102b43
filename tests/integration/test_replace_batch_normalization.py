"""A model without batch normalization is the same in all else, and trains."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_dp
from keras_dp.errors import UnsupportedLayerError
from tests.private_models import CROSS_ENTROPY, private_of
from tests.query_table import assert_equal

NORM = layers.BatchNormalization


def images(records=12):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(records, 6, 6, 3)).astype("float32")
    return x, generator.integers(0, 2, size=records)


def sequential():
    return keras.Sequential(
        [
            keras.Input((6, 6, 3)),
            layers.Conv2D(32, 3, name="conv"),
            NORM(name="norm", epsilon=0.01, scale=False),
            layers.Flatten(),
            layers.Dense(2, name="head"),
        ]
    )


def nested():
    """A shared layer, a residual connection, a model inside."""
    inputs = keras.Input((6, 6, 3))
    block = keras.Sequential(
        [keras.Input((6, 6, 8)), layers.Conv2D(8, 1), NORM(name="inner")]
    )
    conv = layers.Conv2D(8, 3, padding="same", name="shared")
    narrow = layers.Conv2D(3, 1)
    x = NORM(name="outer")(conv(inputs))
    x = layers.ReLU()(x + block(x))
    pool = layers.GlobalAveragePooling2D()
    return keras.Model(inputs, layers.Dense(2)(pool(conv(narrow(x)))))


def all_layers(model):
    for layer in model.layers:
        yield layer
        if isinstance(layer, keras.Model):
            yield from all_layers(layer)


@pytest.mark.full
@pytest.mark.parametrize("make", [sequential, nested])
def test_trains_privately_with_all_other_weights(make) -> None:
    model = make()
    for weights in model.weights:
        weights.assign(np.random.default_rng(1).normal(size=weights.shape))

    replaced = keras_dp.replace_batch_normalization(model)

    for old, new in zip(all_layers(model), all_layers(replaced), strict=True):
        if not isinstance(old, layers.InputLayer):
            assert old.name == new.name
        if isinstance(old, NORM):
            assert isinstance(new, layers.GroupNormalization)
            assert new.epsilon == old.epsilon
            np.testing.assert_array_equal(new.beta, old.beta)
        elif not isinstance(old, keras.Model):
            assert type(new) is type(old)
            for one, two in zip(old.weights, new.weights, strict=True):
                assert one is not two
                np.testing.assert_array_equal(one, two)
    query = keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=6)
    private = private_of(replaced, query, checks=4, loss=CROSS_ENTROPY)
    assert len(replaced.trainable_variables) == len(model.trainable_variables)
    before = model.get_weights()
    private.train_on_batch(*images())
    assert_equal(before, model.get_weights())


@pytest.mark.parametrize(
    ("channels", "groups"), [(64, 4), (48, 3), (30, 1), (5, 1)]
)
def test_groups_divide_the_channels(channels, groups) -> None:
    model = keras.Sequential([keras.Input((channels,)), NORM()])

    replaced = keras_dp.replace_batch_normalization(model)

    assert replaced.layers[0].groups == groups


class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        self.norm = NORM(name="hidden")

    def call(self, inputs):
        return self.norm(inputs)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm = NORM()

    def call(self, inputs):
        return self.norm(inputs)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (Subclassed, TypeError, "GroupNormalization"),
        (lambda: keras.Sequential([NORM()]), ValueError, "built"),
        (
            lambda: keras.Sequential([keras.Input((3,)), Block()]),
            UnsupportedLayerError,
            r"hidden.*GroupNormalization",
        ),
    ],
)
def test_what_cannot_be_reached_is_refused(make, error, match) -> None:
    with pytest.raises(error, match=match):
        keras_dp.replace_batch_normalization(make())
