"""Per-example gradients of one model, compared with a loop over examples."""

import keras
import numpy as np
import tensorflow as tf

from keras_dp.gradients.engine import GradientEngine

BATCH = 4
# Rounding of sums over some hundred terms, relative to the norm of an
# example's whole gradient.
RELATIVE = {"float32": 1e-5, "float64": 1e-10}


def normal(*shape, dtype="float32"):
    return np.random.default_rng(3).normal(size=(BATCH, *shape)).astype(dtype)


def losses_of(outputs):
    """A loss that no output is left out of, with gradients of order 1."""
    total = 0.0
    for leaf in keras.tree.flatten(outputs):
        rows = tf.reshape(leaf, [leaf.shape[0], -1])
        frequencies = tf.linspace(
            tf.constant(0.5, rows.dtype), 1.5, rows.shape[1]
        )
        total += tf.reduce_sum(tf.sin(rows * frequencies + 1.0), axis=1)
    return total


def model_of(layer, *shapes, dtype=None, call=None, seed=1):
    """A model of one layer, with weights that hide nothing."""
    inputs = [
        keras.Input(shape, dtype=kind or dtype)
        for shape, kind in (
            shape if isinstance(shape[-1], str) else (shape, None)
            for shape in shapes
        )
    ]
    outputs = layer(*inputs) if call is None else call(layer, *inputs)
    model = keras.Model(inputs, outputs)
    spread(model, seed)
    return model


def spread(model, seed=1):
    generator = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        value = 0.5 * generator.normal(size=variable.shape)
        variable.assign(value.astype(variable.dtype))


def assert_agrees(model, data, mode, dtype="float32", batch=BATCH):
    """Compares norms, sums and gradients with the model's own, one by one.

    Returns the engine that computed them.
    """
    data = keras.tree.map_structure(tf.constant, data)
    engine = GradientEngine(model, jit_compile=mode == "jit")

    def answers(data):
        result = engine.gradients(data, losses_of, batch)
        weights = tf.linspace(tf.constant(0.2, dtype), 1.4, batch)
        return (
            [record.squared_norms() for record in result.records],
            [record.materialize() for record in result.records],
            [record.weighted_sum(weights) for record in result.records],
            result.outputs,
        )

    compiled = answers
    if mode != "eager":
        compiled = tf.function(
            answers, jit_compile=mode == "jit", autograph=False
        )
    norms, full, sums, outputs = compiled(data)
    # Reduced in another order, through recurrences; relative to order 1.
    keras.tree.map_structure(
        lambda got, want: np.testing.assert_allclose(
            got, want, atol=RELATIVE[dtype], rtol=RELATIVE[dtype]
        ),
        outputs,
        model(data, training=True),
    )
    expected = [_gradients(model, data, index) for index in range(batch)]
    assert_same(model, expected, norms, full, sums, dtype)
    return engine


def _gradients(model, data, index):
    row = keras.tree.map_structure(lambda leaf: leaf[index : index + 1], data)
    values = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        loss = losses_of(model(row, training=True))
    gradients = tape.gradient(loss, values, unconnected_gradients="zero")
    return [np.asarray(tf.convert_to_tensor(each)) for each in gradients]


def assert_same(model, expected, norms, full, sums, dtype):
    scales = [
        np.sqrt(sum(np.sum(np.square(g, dtype="float64")) for g in each))
        for each in expected
    ]
    assert min(scales) > 0
    weights = np.linspace(0.2, 1.4, len(expected))
    for number, variable in enumerate(model.trainable_variables):
        want = np.stack([each[number] for each in expected])
        for index, scale in enumerate(scales):
            bound = RELATIVE[dtype] * scale
            error = np.linalg.norm(full[number][index] - want[index])
            assert error <= bound, (variable.path, error / scale)
            norm = np.linalg.norm(want[index])
            wrong = abs(norms[number][index] - norm**2)
            assert wrong <= 2 * bound * scale, (variable.path, wrong)
        error = np.linalg.norm(
            sums[number] - np.tensordot(weights, want, axes=1)
        )
        assert error <= RELATIVE[dtype] * sum(scales), variable.path
