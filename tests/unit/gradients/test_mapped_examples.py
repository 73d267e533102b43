"""Maps over examples avoid products at which TensorFlow loses memory."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients import example_losses
from keras_dp.gradients.capture.mapped_examples import map_examples

BATCH, STEPS, WIDTH = 8, 6, 3
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(BATCH, STEPS, WIDTH)).astype("float32")
KERNEL = RANDOM.normal(size=(WIDTH, WIDTH)).astype("float32")


def _of_steps(row):
    return row[tf.newaxis] @ KERNEL


def _of_one_step(row):
    return row[tf.newaxis, :1] @ KERNEL[tf.newaxis]


@tf.function(autograph=False)
def _in_function(row):
    return row[tf.newaxis] @ KERNEL


def _of_rows(row):
    return row @ KERNEL


def _elementwise(row):
    return tf.square(row)


LOSES_MEMORY = [_of_steps, _of_one_step, _in_function]
VECTORIZED = [_of_rows, _elementwise]


@pytest.mark.parametrize("function", LOSES_MEMORY + VECTORIZED)
def test_only_such_products_take_a_loop(function) -> None:
    mapped = tf.function(lambda x: map_examples(function, x), autograph=False)
    graph = mapped.get_concrete_function(X).graph
    types = {operation.type for operation in graph.get_operations()}

    found = mapped(X)

    want = np.stack([function(tf.constant(row)) for row in X])
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    assert bool(types & {"While", "StatelessWhile"}) == (
        function in LOSES_MEMORY
    )


@pytest.mark.parametrize("eagerly", [True, False])
def test_a_loss_may_multiply_steps_by_a_matrix(eagerly) -> None:
    """It ended the process, or returned other numbers."""

    def loss(y, outputs):
        return keras.ops.mean(keras.ops.square((outputs - y) @ KERNEL), (1, 2))

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss=loss)
    model._compile_loss(X, X)  # Builds it.

    def losses(outputs):
        return example_losses(
            model._compile_loss, tf.zeros_like(X), outputs, None, BATCH
        ).total

    if not eagerly:
        losses = tf.function(losses, autograph=False)
    for _ in range(5):
        found = losses(tf.constant(X))

    want = np.square(X @ KERNEL).mean((1, 2))
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_functions_that_run_eagerly_are_refused() -> None:
    """It ended in a RecursionError."""
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(PrivateTrainingError, match="run_eagerly=True"):
            map_examples(tf.square, tf.constant(X))
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_allclose(map_examples(tf.square, X), X**2, rtol=1e-6)
