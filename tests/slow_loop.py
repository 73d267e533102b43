"""The slow loop: gradients of one example at a time.

All that the library says about per-example gradients is compared with it.
"""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp.gradients.engine import GradientEngine
from keras_dp.gradients.registry import LayerCall, rule_for

BATCH = 4
# Rounding of sums over some thousand terms, relative to the norm of an
# example's whole gradient.
RELATIVE = {"float32": 1e-5, "float64": 1e-10, "bfloat16": 2**-8}
WEIGHTS = np.linspace(0.2, 1.4, BATCH)
TAKEN = np.array([2, 0])
# The second example is not in its group.
IN_GROUPS = np.array([0.5, 0.0, 0.5, 0.5])


def loop(loss_of, variables, data):
    """Returns the gradients of each variable, `[batch, *shape]`, one by one.

    Args:
        loss_of: A function of a batch of one example, to be differentiated.
        variables: Of Keras.
        data: A nest of tensors `[batch, ...]`.
    """
    values = [variable.value for variable in variables]
    gradients = []
    for i in range(len(keras.tree.flatten(data)[0])):
        row = keras.tree.map_structure(lambda leaf, i=i: leaf[i : i + 1], data)
        with tf.GradientTape() as tape:
            loss = loss_of(row)
        gradients.append(
            [
                tf.convert_to_tensor(gradient).numpy()
                for gradient in tape.gradient(
                    loss, values, unconnected_gradients="zero"
                )
            ]
        )
    return [np.stack(each) for each in zip(*gradients, strict=True)]


def flat_gradients(model, x, y, loss_of):
    """Returns the gradients of a model, `[batch, weights]`, one by one.

    Args:
        model: Built.
        x: Inputs.
        y: Targets.
        loss_of: Of targets and outputs.
    """
    gradients = loop(
        lambda row: loss_of(row[1], model(row[0], training=True)),
        model.trainable_variables,
        (x, y),
    )
    rows = [each.reshape(len(x), -1) for each in gradients]
    return np.concatenate(rows, axis=1).astype("float64")


def clipped(gradients, clip):
    """Returns the gradients `[batch, weights]` whose norms are at most it."""
    norms = np.linalg.norm(gradients, axis=-1, keepdims=True)
    return gradients * np.minimum(1.0, clip / np.maximum(norms, 1e-300))


def flat(model):
    """Returns all weights of a model in one vector."""
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


class Answers(NamedTuple):
    """What the records of one variable answer."""

    full: tf.Tensor
    norms: tf.Tensor
    total: tf.Tensor
    taken: tf.Tensor
    groups: tf.Tensor
    group_norms: tf.Tensor
    group_total: tf.Tensor


def answers(records, dtype):
    groups = records.grouped(2, tf.constant(IN_GROUPS, dtype))
    return Answers(
        full=records.materialize(),
        norms=records.squared_norms(),
        total=records.weighted_sum(tf.constant(WEIGHTS, dtype)),
        taken=records.materialize(tf.constant(TAKEN)),
        groups=groups.materialize(),
        group_norms=groups.squared_norms(),
        group_total=groups.weighted_sum(tf.constant(WEIGHTS[:2], dtype)),
    )


def assert_answers(found, want, dtype="float32", of_zero=()):
    """Fails unless all answers agree with the gradients of the loop.

    Args:
        found: The answers for each variable.
        want: The gradients of each variable, `[BATCH, *shape]`.
        dtype: In which gradients are computed.
        of_zero: The examples without gradients; all others must have some.
    """
    assert len(found) == len(want)
    want = [gradient.astype("float64") for gradient in want]
    squares = sum(_squares(gradient) for gradient in want)
    assert [*np.flatnonzero(squares == 0)] == [*of_zero]
    bound = RELATIVE[dtype] * np.sqrt(squares)
    in_group = (bound * IN_GROUPS).reshape([2, -1]).sum(axis=1)
    for got, gradient in zip(found, want, strict=True):
        assert got.full.shape == gradient.shape
        _assert_near(got.full, gradient, bound)
        # Never below: what is clipped is what is summed.
        full = _squares(got.full.astype("float64"))
        assert np.all(got.norms >= full * (1 - RELATIVE[dtype]))
        wrong = np.abs(got.norms - _squares(gradient))
        assert np.all(wrong <= 2 * bound * np.sqrt(squares))
        total = np.tensordot(WEIGHTS, gradient, axes=1)
        assert np.linalg.norm(got.total - total) <= 2 * bound.sum()
        _assert_near(got.taken, gradient[TAKEN], bound[TAKEN])

        weighted = gradient * IN_GROUPS.reshape([-1] + [1] * (total.ndim))
        groups = weighted.reshape([2, -1, *total.shape]).sum(axis=1)
        _assert_near(got.groups, groups, 2 * in_group)
        norms, exact = np.sqrt(got.group_norms), np.sqrt(_squares(groups))
        assert np.all(norms >= exact - 2 * in_group)
        # They may be upper bounds, where terms cancel.
        assert np.all(norms <= 1.2 * exact + 2 * in_group)
        total = np.tensordot(WEIGHTS[:2], groups, axes=1)
        assert np.linalg.norm(got.group_total - total) <= 2 * in_group.sum()


def _assert_near(got, want, bound):
    assert got.shape == want.shape
    assert np.all(np.sqrt(_squares(got - want)) <= bound)


def _squares(gradients):
    return np.sum(np.square(gradients), axis=tuple(range(1, gradients.ndim)))


def compiled(function, mode):
    """Returns the function as "eager", "graph" or "jit" runs it."""
    if mode == "eager":
        return function
    return tf.function(function, jit_compile=mode == "jit", autograph=False)


# Rules of layers.


def rule_of(layer):
    """The rule, which there must be."""
    rule = rule_for(layer)
    assert rule is not None
    return rule


def call_of(layer, inputs, cotangent, *, static_shapes=True):
    """A call, as the hooks note it."""
    return LayerCall(
        layer, (inputs,), {}, [cotangent], static_shapes=static_shapes
    )


def loop_of_layer(layer, inputs, cotangent):
    """The loop; `cotangent` is that of the output before the activation."""
    return loop(
        lambda row: layer(row[0]) * row[1],
        layer.trainable_variables,
        (inputs, cotangent),
    )


def assert_rule_agrees(layer, inputs, cotangent, mode, want=None):
    """Fails unless all answers of the rule agree with the loop's.

    Args:
        layer: Built.
        inputs: `[BATCH, ...]`.
        cotangent: Of the output before the activation.
        mode: "eager", "graph" or "jit".
        want: The gradients; by default those of the loop.
    """
    rule, dtype = rule_of(layer), inputs.dtype.name
    found = []

    def answer(inputs, cotangent):
        pairs = rule(
            call_of(layer, inputs, cotangent, static_shapes=mode != "graph")
        )
        found[:] = [variable for variable, _ in pairs]
        return [answers(records, dtype) for _, records in pairs]

    got = keras.tree.map_structure(
        np.asarray, compiled(answer, mode)(inputs, cotangent)
    )

    assert [id(v) for v in found] == [id(v) for v in layer.trainable_variables]
    if want is None:
        want = loop_of_layer(layer, inputs, cotangent)
    assert_answers(got, want, dtype)


# Models.


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


def assert_model_agrees(model, data, mode, dtype="float32", engine=None):
    """Compares an engine's answers with the model's gradients, one by one.

    Returns the engine that computed them, by default a new one.
    """
    data = keras.tree.map_structure(tf.constant, data)
    engine = engine or GradientEngine(model, jit_compile=mode == "jit")

    def answer(data):
        result = engine.gradients(data, losses_of, BATCH)
        return [answers(each, dtype) for each in result.records], result.outputs

    found, outputs = keras.tree.map_structure(
        np.asarray, compiled(answer, mode)(data)
    )

    # Reduced in another order, through recurrences; relative to order 1.
    keras.tree.map_structure(
        lambda got, want: np.testing.assert_allclose(
            got, want, atol=RELATIVE[dtype], rtol=RELATIVE[dtype]
        ),
        outputs,
        model(data, training=True),
    )
    want = loop(
        lambda row: losses_of(model(row, training=True)),
        model.trainable_variables,
        data,
    )
    assert_answers(found, want, dtype)
    return engine
