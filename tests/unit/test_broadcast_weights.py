"""Weights that a layer only broadcasts against its output need no loop."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_dp.gradients.capture.broadcast_weights import broadcast_gradients
from keras_dp.gradients.capture.vectorized import vectorized
from keras_dp.gradients.registry import LayerCall

# As many examples as positions: no length tells one axis from the other.
BATCH = POSITIONS = 4
WIDTH = 3


class Own(keras.layers.Layer):
    """Computes `function(x, w, b)`."""

    def __init__(self, function, shape, **kwargs):
        super().__init__(**kwargs)
        self.function, self.shape = function, shape

    def build(self, input_shape):
        self.w = self.add_weight(shape=self.shape, initializer="uniform")
        self.b = self.add_weight(shape=(WIDTH,), initializer="uniform")

    def call(self, x):
        return self.function(x, self.w, self.b)


def normalized(x):
    return x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + 1e-6)


BROADCAST = {
    "root mean square normalization": (
        lambda x, w, b: normalized(x) * (1 + w) + b,
        (WIDTH,),
    ),
    "one weight for each position": (
        lambda x, w, b: ops.relu(x * ops.exp(w) - b),
        (POSITIONS, 1),
    ),
    "a scalar": (lambda x, w, b: x * ops.softplus(w) + b * b, ()),
    "all axes": (lambda x, w, b: (x * w) * (x + b), (1, 1, WIDTH)),
    "a difference": (lambda x, w, b: b - x * w, (1,)),
    "used twice": (lambda x, w, b: x * w + ops.square(x) * (2 * w) + b, (1,)),
    "a function of one weight": (
        lambda x, w, b: x * (w * (w + 2.0)) * ops.sigmoid(w) + b,
        (WIDTH,),
    ),
    "unused": (lambda x, w, b: x * w, (WIDTH,)),
}
OTHERS = {
    "a mean of the weights": (
        lambda x, w, b: x * (w / ops.mean(w)) + b,
        (WIDTH,),
    ),
    "weights that change places": (
        lambda x, w, b: x * w + ops.flip(b),
        (WIDTH,),
    ),
    "positions that are mixed": (
        lambda x, w, b: ops.softmax(x * w + b),
        (WIDTH,),
    ),
    "positions that change places": (
        lambda x, w, b: ops.flip(x * w + b, axis=1),
        (WIDTH,),
    ),
    "axes that change places": (
        lambda x, w, b: ops.transpose(
            ops.transpose(x, (1, 0, 2)) * w + b, (1, 0, 2)
        ),
        (POSITIONS, 1, 1),
    ),
    "a weight for each row": (lambda x, w, b: x * w + b, (BATCH, 1, 1)),
    "a variable behind the back of Keras": (
        lambda x, w, b: x * tf.convert_to_tensor(w._value) + b,
        (WIDTH,),
    ),
    "a matrix": (lambda x, w, b: x * w + b, (POSITIONS, WIDTH)),
    "a product": (
        lambda x, w, b: ops.matmul(x, ops.reshape(w, (WIDTH, 1))) + x * b,
        (WIDTH,),
    ),
}


def call_of(function, shape, dtype="float32"):
    keras.utils.set_random_seed(0)
    layer = Own(function, shape, dtype=dtype)
    values = np.random.default_rng(0).normal(size=(2, BATCH, POSITIONS, WIDTH))
    x, cotangent = tf.constant(values, tf.float32)
    outputs = layer(x)
    cotangent = tf.cast(cotangent, outputs.dtype)
    return LayerCall(layer, (x,), {}, [cotangent])


def found(call, variables):
    return broadcast_gradients(call, variables, contextlib.nullcontext)


def alone(call, row):
    layer, variables = call.layer, call.layer.trainable_variables
    with tf.GradientTape() as tape:
        outputs = layer(call.args[0][row : row + 1])
    return tape.gradient(
        outputs,
        [variable.value for variable in variables],
        output_gradients=call.cotangents[0][row : row + 1],
        unconnected_gradients="zero",
    )


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("name", BROADCAST)
def test_gradients_are_those_of_single_examples(name, dtype) -> None:
    call = call_of(*BROADCAST[name], dtype)
    variables = call.layer.trainable_variables

    @tf.function(autograph=False)
    def of_batch():
        pairs = found(call, variables)
        assert [v is w for v, (w, _) in zip(variables, pairs, strict=True)]
        return [records.materialize() for _, records in pairs]

    tolerance = 1e-5 if dtype == "float32" else 5e-2
    for row in range(BATCH):
        for ours, own in zip(of_batch(), alone(call, row), strict=True):
            np.testing.assert_allclose(ours[row], own, tolerance, tolerance)


@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_are_left_to_the_loop(name) -> None:
    call = call_of(*OTHERS[name])

    @tf.function(autograph=False)
    def pairs():
        results.append(found(call, call.layer.trainable_variables))

    results = []
    pairs.get_concrete_function()

    assert results == [None]


def test_a_layer_that_runs_eagerly_is_left_to_the_loop() -> None:
    call = call_of(*BROADCAST["a scalar"])

    assert found(call, call.layer.trainable_variables) is None


def test_the_fallback_has_no_loop_then() -> None:
    def operations(case):
        call = call_of(*case)

        @tf.function(autograph=False)
        def traced():
            pairs = vectorized(
                call, call.layer.trainable_variables, jit_compile=False
            )
            return [records.materialize() for _, records in pairs]

        graph = traced.get_concrete_function().graph
        return {each.name.split("/")[0] for each in graph.get_operations()}

    def has_loop(case):
        return any("loop_body" in name for name in operations(case))

    assert not has_loop(BROADCAST["a scalar"])
    assert has_loop(OTHERS["a mean of the weights"])  # Control.
