"""Layers without a rule whose gradients exceed the budget."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_dp.gradients import GradientEngine
from keras_dp.gradients.capture import vectorized
from keras_dp.gradients.records.recomputed_records import RecomputedRecords
from tests.slow_loop import (
    BATCH,
    answers,
    assert_answers,
    compiled,
    loop,
    losses_of,
    normal,
)


class Mixes(keras.layers.Layer):
    """Two normalized kernels and a bias: no rule knows these."""

    def build(self, shape):
        self.first = self.add_weight(shape=(shape[-1], 6), name="first")
        self.second = self.add_weight(shape=(6, 5), name="second")
        self.bias = self.add_weight(shape=(5,), name="bias")

    def call(self, x):
        first, second = (w / tf.norm(w) for w in (self.first, self.second))
        return ops.tanh(ops.matmul(x, first)) @ second + self.bias


@pytest.fixture
def model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((7,)), Mixes()])
    for variable in model.trainable_variables:
        variable.assign(np.random.default_rng(2).normal(size=variable.shape))
    return model


# A gradient takes 308 bytes: all examples at once, several, one by one; the
# large kernel alone is computed again, both are, or all three variables.
@pytest.mark.parametrize("budget", [2**27, 1200, 1000, 1])
@pytest.mark.parametrize(
    ("mode", "calls"), [("eager", 1), ("graph", 1), ("jit", 1), ("graph", 2)]
)
def test_agree_with_the_loop(monkeypatch, model, budget, mode, calls) -> None:
    monkeypatch.setattr(vectorized, "LARGEST_BYTES", budget)
    (layer,) = model.layers
    if calls == 2:
        inputs = keras.Input((7,))
        outputs = layer(inputs) + layer(-2 * inputs)
        model = keras.Model(inputs, outputs)
    engine = GradientEngine(model, jit_compile=mode == "jit")
    x = tf.constant(normal(7))
    kinds = []

    def answer(x):
        records = engine.gradients(x, losses_of, BATCH).records
        kinds[:] = map(type, records)
        return [answers(each, "float32") for each in records]

    got = keras.tree.map_structure(np.asarray, compiled(answer, mode)(x))

    want = loop(lambda row: losses_of(model(row)), engine.variables, x)
    assert_answers(got, want)
    large = [kind is RecomputedRecords for kind in kinds]
    assert (
        large
        == {
            2**27: [False] * 3,
            1200: [True, False, False],
            1000: [True, True, False],
            1: [True] * 3,
        }[budget]
    )


def test_hold_few_examples_at_once(monkeypatch, model) -> None:
    """No tensor of the graph has more gradients than the budget allows."""
    most = 3
    monkeypatch.setattr(vectorized, "LARGEST_BYTES", most * 4 * 77)
    engine = GradientEngine(model)
    batch = 64

    @tf.function(autograph=False)
    def step(x):
        records = engine.gradients(x, losses_of, batch).records
        weights = 1.0 / sum(each.squared_norms() for each in records)
        return [each.weighted_sum(weights) for each in records]

    graph = step.get_concrete_function(tf.zeros([batch, 7])).graph
    bodies = [graph, *(graph._functions[name] for name in graph._functions)]
    shapes = {
        tuple(output.shape)
        for body in bodies
        for operation in getattr(body, "graph", body).get_operations()
        for output in operation.outputs
        if output.shape.rank is not None
    }
    kernels = {shape for shape in shapes if shape[-2:] in {(7, 6), (6, 5)}}
    assert kernels
    assert max(np.prod(shape[:-2]) for shape in kernels) == most


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
def test_chunks_may_be_filled_up(chunk) -> None:
    gradients = tf.reshape(tf.range(10.0), [5, 2])
    records = RecomputedRecords(
        lambda indices: tf.gather(gradients, indices),
        tf.range(5),
        gradients[0],
        chunk,
    )
    weights = np.linspace(1.0, 2.0, 5)

    squares = records.squared_norms()
    total = records.weighted_sum(tf.constant(weights, tf.float32))

    np.testing.assert_allclose(squares, np.sum(gradients**2, axis=1), 1e-6)
    np.testing.assert_allclose(total, weights @ gradients.numpy(), 1e-6)


def test_examples_that_are_not_finite_are_left_out(monkeypatch, model) -> None:
    monkeypatch.setattr(vectorized, "LARGEST_BYTES", 1)
    engine = GradientEngine(model)
    x = normal(7)
    x[1] = np.nan
    weights = tf.constant([1.0, 0.0, 1.0, 0.5])

    records = engine.gradients(tf.constant(x), losses_of, BATCH).records

    for each in records:
        assert not np.isfinite(each.squared_norms()[1])
        assert np.isfinite(each.weighted_sum(weights)).all()
