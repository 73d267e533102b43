"""Operations that cannot be vectorized are trained, one example at a time."""

import keras
import pytest
import tensorflow as tf
from keras import layers, ops

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients import self_check
from keras_dp.gradients.engine import GradientEngine
from tests.slow_loop import BATCH, assert_model_agrees, losses_of, normal

STEPS, WIDTH = 5, 4


class Applies(layers.Layer):
    """Applies a function to its inputs and a weight."""

    def __init__(self, function):
        super().__init__(name="applies")
        self.function = function

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], WIDTH), name="kernel")

    def call(self, x):
        return self.function(x, self.kernel)

    def compute_output_spec(self, x):
        return keras.KerasTensor((*x.shape[:-1], WIDTH))


def _scan(x, kernel):
    def step(state, row):
        state = ops.tanh(ops.matmul(state, kernel) + row)
        return state, state

    steps = ops.transpose(x, (1, 0, 2))
    return ops.transpose(ops.scan(step, steps[0] * 0, steps)[1], (1, 0, 2))


def _associative_scan(x, kernel):
    sums = ops.associative_scan(ops.add, ops.matmul(x, kernel), axis=1)
    return ops.reshape(sums, (-1, STEPS, WIDTH))


def _cond(x, kernel):
    made = ops.matmul(x, kernel)
    return ops.cond(ops.sum(kernel) > 0, lambda: ops.tanh(made), lambda: -made)


def _switch(x, kernel):
    made = ops.matmul(x, kernel)
    index = ops.cast(ops.sum(kernel) > 0, "int32")
    return ops.switch(index, [ops.tanh, ops.negative], made)


def _dispatch(x, kernel):
    places = tf.where(ops.sum(x, axis=-1) > 0)
    made = ops.tanh(ops.matmul(tf.gather_nd(x, places), kernel))
    return tf.tensor_scatter_nd_update(x, places, made)


def _sparse(x, kernel):
    rows = tf.sparse.from_dense(ops.reshape(x, (-1, WIDTH)))
    return ops.reshape(ops.matmul(rows, kernel), (-1, STEPS, WIDTH))


TRAINED = [_scan, _associative_scan, _cond, _switch, _dispatch, _sparse]


def applying(function):
    x = keras.Input((STEPS, WIDTH))
    outputs = layers.Dense(2)(layers.Flatten()(Applies(function)(x)))
    return keras.Model(x, outputs)


class TestAModel:
    @pytest.mark.parametrize(
        "mode", ["graph", pytest.param("eager", marks=pytest.mark.full)]
    )
    @pytest.mark.parametrize("function", TRAINED, ids=lambda f: f.__name__)
    def test_has_the_gradients_of_single_examples(self, function, mode) -> None:
        model, x = applying(function), normal(STEPS, WIDTH)

        engine = assert_model_agrees(model, x, mode)

        assert self_check(
            engine, tf.constant(x), losses_of, BATCH, eagerly=mode == "eager"
        )


class TestIsRefusedByName:
    def test_a_state_of_other_examples(self) -> None:
        x = keras.Input((STEPS, WIDTH), batch_size=BATCH)
        states = layers.LSTM(3, stateful=True, name="keeps")(x)

        with pytest.raises(UnsupportedLayerError, match=r"keeps.*stateful=Fa"):
            GradientEngine(keras.Model(x, layers.Dense(2)(states)))

    def test_a_sparse_tensor(self) -> None:
        class MakesSparse(layers.Layer):
            def call(self, x):
                return tf.sparse.from_dense(x)

            def compute_output_spec(self, x):
                return keras.KerasTensor(x.shape, sparse=True)

        x = keras.Input((WIDTH,))
        outputs = layers.Dense(2, name="on_sparse")(MakesSparse()(x))
        engine = GradientEngine(keras.Model(x, outputs))

        with pytest.raises(
            UnsupportedLayerError, match=r"on_sparse.*sparse=False"
        ):
            engine.gradients(normal(WIDTH), losses_of, BATCH)

    def test_an_unknown_shape(self) -> None:
        def scan(x, kernel):
            return ops.associative_scan(ops.add, ops.matmul(x, kernel), axis=1)

        x = keras.Input((STEPS, WIDTH))
        model = keras.Model(x, Applies(scan)(x))

        @tf.function(autograph=False)
        def gradients(x):
            return GradientEngine(model).gradients(x, losses_of, BATCH).losses

        with pytest.raises(UnsupportedLayerError, match=r"applies.*reshape"):
            gradients(normal(STEPS, WIDTH))
