"""Operations that cannot be vectorized are trained, one example at a time."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import keras_dp
from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients import self_check
from keras_dp.gradients.engine import GradientEngine
from tests.private_models import private_of
from tests.slow_loop import compiled, loop

BATCH, STEPS, WIDTH = 6, 5, 4


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


def in_remat_scope():
    x = keras.Input((STEPS, WIDTH))
    with keras.RematScope(mode="full"):
        inside = layers.Conv1D(WIDTH, 3, activation="relu")
        above = layers.Dense(3, activation="tanh")
    outputs = layers.Flatten()(above(inside(x)))
    return keras.Model(x, layers.Dense(2)(outputs))


def data():
    x = np.random.default_rng(3).normal(size=(BATCH, STEPS, WIDTH))
    return tf.constant(x.astype("float32"))


def losses_of(outputs):
    return tf.reduce_sum(tf.sin(2 * outputs + 1), axis=1)


def fitted(model, x, y, loss="mse"):
    """Trains privately for two rounds, without noise that hides mistakes."""
    private = private_of(
        model,
        keras_dp.dp_queries.GaussianSumQuery(1e3, 0.0),
        loss=loss,
        jit_compile=False,  # XLA, Keras's default on GPUs, refuses some models.
    )
    private.fit(x, y, batch_size=len(x), epochs=2, verbose=0)
    return private.optimizer.ledger


MODELS = [
    *(pytest.param(lambda f=f: applying(f), id=f.__name__) for f in TRAINED),
    pytest.param(in_remat_scope, id="remat_scope"),
]


class TestAModel:
    @pytest.mark.parametrize(
        "mode", ["graph", pytest.param("eager", marks=pytest.mark.full)]
    )
    @pytest.mark.parametrize("make", MODELS)
    def test_has_the_gradients_of_single_examples(self, make, mode) -> None:
        model, x = make(), data()
        engine = GradientEngine(model)

        assert self_check(engine, x, losses_of, BATCH, eagerly=mode == "eager")

        def gradients(x):
            records = engine.gradients(x, losses_of, BATCH).records
            return [record.materialize() for record in records]

        got = compiled(gradients, mode)(x)
        want = loop(
            lambda row: losses_of(model(row, training=True)),
            model.trainable_variables,
            x,
        )
        for one, two in zip(got, want, strict=True):
            # float32 rounding of gradients of order 1, of sums of outputs. A
            # row of another example changes them by tenths.
            np.testing.assert_allclose(one, two, atol=1e-4)


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
            engine.gradients(data()[:, 0], losses_of, BATCH)

    def test_an_unknown_shape(self) -> None:
        def scan(x, kernel):
            return ops.associative_scan(ops.add, ops.matmul(x, kernel), axis=1)

        x = keras.Input((STEPS, WIDTH))
        model = keras.Model(x, Applies(scan)(x))

        @tf.function(autograph=False)
        def gradients(x):
            engine = GradientEngine(model)
            return engine.gradients(x, losses_of, BATCH).losses

        with pytest.raises(UnsupportedLayerError, match=r"applies.*reshape"):
            gradients(data())
