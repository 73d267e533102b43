"""A layer that takes batches of one size only is named."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import keras_dp
from keras_dp.errors import UnsupportedLayerError
from keras_dp.sampling import PoissonBatches
from tests.private_models import private_of

ROWS, RECORDS = 16, 64
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(RECORDS, 6)).astype("float32")
Y = np.arange(RECORDS) % 2
GRAPH = tf.constant(GENERATOR.random((ROWS, ROWS)), tf.float32)
SOURCES = np.arange(ROWS)


class Convolved(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense = layers.Dense(2)

    def call(self, x):
        return ops.matmul(GRAPH, self.dense(x))


class Edges(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(6, 2))

    def call(self, x):
        sent = ops.take(ops.matmul(x, self.kernel), SOURCES, axis=0)
        return ops.segment_sum(sent, np.roll(SOURCES, 1), ROWS)


class OfRows(layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(ROWS, 6))

    def call(self, x):
        return x + self.table


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x):
        return self.dense(tf.matmul(GRAPH, x))


def stacked(*stack):
    return lambda: keras.Sequential([keras.Input((6,)), *(f() for f in stack)])


def functional(function):
    def make():
        x = keras.Input((6,))
        return keras.Model(x, function(x))

    return make


def dense():
    return layers.Dense(2)


def product():
    return layers.Lambda(lambda x: tf.matmul(GRAPH, x), name="product")


MODELS = {
    "layer": (stacked(Convolved), "Convolved"),
    "nested": (
        stacked(lambda: keras.Sequential([layers.Dense(4), Convolved()])),
        "Convolved",
    ),
    "before": (stacked(product, dense), "product' of class Lambda"),
    "after": (stacked(dense, product), "product' of class Lambda"),
    "edges": (stacked(Edges), "Edges"),
    "weights": (stacked(OfRows, dense), "OfRows"),
    "operation": (
        functional(lambda x: ops.matmul(GRAPH, layers.Dense(2)(x))),
        "Matmul",
    ),
    "sum": (functional(lambda x: layers.Dense(2)(x) + GRAPH[:, :2]), "Add"),
    "joined": (
        functional(
            lambda x: layers.Dense(2)(
                layers.Lambda(lambda x: tf.concat([x, GRAPH], 1))(x)
            )
        ),
        "Lambda",
    ),
    "subclassed": (Subclassed, "Subclassed"),
}


def private(model):
    return private_of(
        model,
        keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=8),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        checks=2,
    )


def of_its_size(model):
    model.fit(X, Y, batch_size=ROWS, verbose=0)


def drawn(model):
    samples = PoissonBatches((X, Y), sampling_probability=0.2)
    model.fit(samples, verbose=0)


@pytest.mark.full
@pytest.mark.parametrize("train", [of_its_size, drawn])
@pytest.mark.parametrize("name", MODELS)
def test_the_layer_is_named(name, train) -> None:
    make, words = MODELS[name]
    model = private(make())

    with pytest.raises(
        UnsupportedLayerError, match=f"^`model` must .*{words}.*number of rows"
    ):
        train(model)

    assert model.optimizer.ledger.runs == ()
