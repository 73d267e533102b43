"""A layer that takes batches of one size only is refused before any round."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import keras_dp
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
    model.fit(PoissonBatches((X, Y), sampling_probability=0.2), verbose=0)


@pytest.mark.standard
@pytest.mark.parametrize("train", [of_its_size, drawn])
@pytest.mark.parametrize("layer", [Convolved, Edges, OfRows])
def test_no_round_is_released(layer, train) -> None:
    model = private(
        keras.Sequential([keras.Input((6,)), layer(), layers.Dense(2)])
    )

    with pytest.raises(ValueError, match=r"must be equal|must have a shape"):
        train(model)

    assert model.optimizer.ledger.runs == ()


def test_control_a_layer_of_any_size_is_trained() -> None:
    model = private(keras.Sequential([keras.Input((6,)), layers.Dense(2)]))

    drawn(model)

    assert len(model.optimizer.ledger.runs) == 1
