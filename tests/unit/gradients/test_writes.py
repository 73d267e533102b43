"""What a model keeps while it is called in training: states of seeds only."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients import GradientEngine
from tests.slow_loop import compiled

X = tf.constant(np.random.default_rng(0).normal(size=(4, 4)), tf.float32)


def _squares(outputs):
    return tf.reduce_sum(tf.square(outputs), axis=1)


def _model(*stack):
    return keras.Sequential([keras.Input((4,)), *stack, layers.Dense(3)])


class Does(layers.Layer):
    """Hands its inputs to a function, and on."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def call(self, x):
        self.act(self, x)
        return x


def _engine(act):
    return GradientEngine(_model(Does(act)))


def _run(engine, mode, losses_of=_squares, x=X):
    def step(x):
        return engine.gradients(x, losses_of, 4).losses

    return compiled(step, mode)(x)


def _variable(*shape):
    return tf.Variable(tf.zeros(shape))


def _table():
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)


def _whole():
    seen = _variable(4)
    return lambda layer, x: seen.assign_add(tf.reduce_sum(x, axis=0))


def _slice():
    seen = _variable(4)
    return lambda layer, x: seen[0].assign(tf.reduce_max(x))


def _scatter():
    seen = _variable(4)
    return lambda layer, x: seen.scatter_nd_add([[0]], x[0, :1])


def _in_condition():
    seen = _variable()

    def act(layer, x):
        most = tf.reduce_max(x)
        tf.cond(most > -9, lambda: seen.assign(most), seen.read_value)

    return act


def _in_loop():
    seen = _variable()

    def body(i, x):
        seen.assign(tf.reduce_max(x))
        return i + 1, x

    return lambda layer, x: tf.while_loop(lambda i, _: i < 2, body, [0, x])


def _in_function(**options):
    seen = _variable(4)

    @tf.function(**options)
    def inner(x):
        return tf.cond(
            tf.reduce_max(x) > -9,
            lambda: seen.assign(tf.reduce_sum(x, axis=0)),
            seen.read_value,
        )

    outer = tf.function(lambda x: inner(x) + 1)
    return lambda layer, x: outer(x)


def _in_table():
    table = _table()
    key = tf.constant([1], tf.int64)
    return lambda layer, x: table.insert(key, x[0, :1])


def _in_python():
    seen = []
    return lambda layer, x: tf.py_function(
        lambda x: seen.append(x.numpy()), [x], []
    )


def _in_stateless_python():
    seen = []

    def remembered(x):
        seen.append(x)
        return x

    return lambda layer, x: tf.numpy_function(
        remembered, [x], tf.float32, stateful=False
    )


# An eager step just calls it: nothing tells it from the layer's own code.
STATELESS = "a list by a function said to be stateless"
WRITES = {
    "a variable": _whole,
    "a slice of a variable": _slice,
    "scattered into a variable": _scatter,
    "in a condition": _in_condition,
    "in a loop": _in_loop,
    "in a function": _in_function,
    "in a function of XLA": lambda: _in_function(jit_compile=True),
    "a table": _in_table,
    "a list by a Python function": _in_python,
    STATELESS: _in_stateless_python,
    "a printed line": lambda: lambda layer, x: tf.print(x, summarize=-1),
}


def _added_in_place(layer, x):
    layer.seen[:] += x.numpy().sum()


# What is there before, and what a call does.
ATTRIBUTES = {
    "another": (lambda: None, lambda layer, x: setattr(layer, "seen", x)),
    "a list": (list, lambda layer, x: layer.seen.append(x)),
    "an array": (lambda: np.zeros(4, np.float32), _added_in_place),
    "an array of objects": (
        lambda: np.zeros(1, object),
        lambda layer, x: layer.seen.__setitem__(0, x),
    ),
}


class TestIsRefused:
    def test_what_is_said_to_be_stateless(self) -> None:
        engine = _engine(WRITES[STATELESS]())

        with pytest.raises(UnsupportedLayerError, match="without noise"):
            _run(engine, "graph")

    @pytest.mark.parametrize("mode", ["graph", "eager"])
    @pytest.mark.parametrize("kind", sorted(WRITES.keys() - {STATELESS}))
    def test_by_the_name_of_the_layer(self, kind, mode) -> None:
        layer = Does(WRITES[kind]())
        layer.name = "keeper"
        block = keras.Sequential([keras.Input((4,)), layers.Dense(4), layer])
        engine = GradientEngine(_model(Does(lambda layer, x: x), block))

        # The second call has a scope with a number.
        for _ in range(2):
            with pytest.raises(
                UnsupportedLayerError, match=r"^Layer '.*keeper' of class Does:"
            ):
                _run(engine, mode)

    @pytest.mark.parametrize("mode", ["graph", "eager"])
    def test_without_one_where_the_loss_keeps_data(self, mode) -> None:
        seen = _variable()

        def losses_of(outputs):
            seen.assign(tf.reduce_max(outputs))
            return _squares(outputs)

        engine = _engine(lambda layer, x: x)
        with pytest.raises(UnsupportedLayerError, match=r"^'[^']*' writes "):
            _run(engine, mode, losses_of)

    @pytest.mark.parametrize("mode", ["graph", "eager"])
    def test_a_variable_of_the_model_which_is_named(self, mode) -> None:
        class Maximum(layers.Layer):
            def build(self, shape):
                self.seen = self.add_weight(
                    shape=(), name="seen", trainable=False
                )

            def call(self, x):
                self.seen.assign(keras.ops.maximum(self.seen, keras.ops.max(x)))
                return x

        engine = GradientEngine(_model(Maximum()))

        with pytest.raises(UnsupportedLayerError, match=r"maximum.*/seen'"):
            _run(engine, mode)

    @pytest.mark.parametrize("mode", ["graph", "eager"])
    def test_a_trained_weight(self, mode) -> None:
        head = layers.Dense(3, name="head")
        model = keras.Sequential([keras.Input((4,)), head])
        before = head.bias.numpy()

        def losses_of(outputs):
            head.bias.assign_add(tf.reduce_sum(outputs, axis=0))
            return _squares(outputs)

        with pytest.raises(UnsupportedLayerError, match=r"head/bias"):
            _run(GradientEngine(model), mode, losses_of)
        np.testing.assert_array_equal(head.bias, before)

    @pytest.mark.parametrize("kind", ATTRIBUTES)
    def test_an_attribute_of_a_layer_in_an_eager_step(self, kind) -> None:
        before, act = ATTRIBUTES[kind]
        # Nothing is kept while the model is built.
        layer = Does(lambda layer, x: hasattr(x, "numpy") and act(layer, x))
        layer.seen = before()

        with pytest.raises(UnsupportedLayerError, match=r"seen.*without noise"):
            _run(GradientEngine(_model(layer)), "eager")


def _reads():
    seen, table = _variable(4), _table()
    key = tf.constant([1], tf.int64)

    def act(layer, x):
        tf.debugging.assert_less(x, 99.0)
        tf.debugging.check_numerics(x, "x")
        seen.read_value()
        tf.gather(seen, [0])
        table.lookup(key)
        tf.cond(tf.reduce_max(x) > 0, lambda: x, lambda: x + 1)
        tf.function(lambda x: tf.while_loop(lambda i: i < 2, _next, [0]))(x)

    return act


def _next(i):
    return i + 1


class TestIsFine:
    @pytest.mark.parametrize("mode", ["graph", "eager"])
    def test_what_reads_and_asserts(self, mode) -> None:
        assert _run(_engine(_reads()), mode).shape == (4,)

    @pytest.mark.parametrize("mode", ["graph", "eager"])
    @pytest.mark.parametrize(
        "layer",
        [
            layers.Dropout(0.5),
            layers.GaussianNoise(0.5),
            layers.LSTM(3, dropout=0.5),
            layers.LSTM(3, stateful=False, return_state=False),
            layers.MultiHeadAttention(1, 2, dropout=0.5),
        ],
        ids=lambda layer: type(layer).__name__,
    )
    def test_that_layers_count_their_draws(self, layer, mode) -> None:
        inputs = keras.Input((4, 2))
        is_attention = isinstance(layer, layers.MultiHeadAttention)
        outputs = layer(inputs, inputs) if is_attention else layer(inputs)
        outputs = layers.Dense(2)(layers.Flatten()(outputs))
        layer.trainable = False
        engine = GradientEngine(keras.Model(inputs, outputs))

        x = tf.reshape(tf.tile(X, [1, 2]), [4, 4, 2])
        assert _run(engine, mode, x=x).shape == (4,)
