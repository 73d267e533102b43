"""One layer's rule beside a loop over single examples."""

import keras
import numpy as np
import tensorflow as tf

from keras_dp.gradients.registry import LayerCall, rule_for

BATCH = 4
# Rounding of sums over some thousand terms, relative to the norm of an
# example's whole gradient.
RELATIVE = {"float32": 1e-5, "float64": 1e-10}


def rule_of(layer):
    """The rule, which there must be."""
    rule = rule_for(layer)
    assert rule is not None
    return rule


def call_of(layer, inputs, cotangent, *, static_shapes=True):
    """A call, as the taps note it."""
    return LayerCall(
        layer, (inputs,), {}, [cotangent], static_shapes=static_shapes
    )


def loop(layer, inputs, cotangent):
    """The gradients of each variable, `[batch, *shape]`, one by one.

    `cotangent` is that of the output before the layer's activation.
    """
    values = [variable.value for variable in layer.trainable_variables]
    gradients = []
    for i in range(inputs.shape[0]):
        with tf.GradientTape() as tape:
            outputs = layer(inputs[i : i + 1])
        gradients.append(
            tape.gradient(
                outputs, values, output_gradients=cotangent[i : i + 1]
            )
        )
    return [
        np.stack([tf.convert_to_tensor(g).numpy() for g in each])
        for each in zip(*gradients, strict=True)
    ]


def assert_agrees(layer, inputs, cotangent, mode, want=None):
    """Fails unless all answers of the rule agree with the loop's.

    Args:
        layer: Built.
        inputs: `[BATCH, ...]`.
        cotangent: Of the output before the activation.
        mode: "eager", "graph" or "jit".
        want: The gradients; by default those of the loop.
    """
    rule = rule_of(layer)
    want = loop(layer, inputs, cotangent) if want is None else want
    weights = np.linspace(0.2, 1.4, BATCH)
    indices = np.array([2, 0])
    found = []

    def answers(inputs, cotangent):
        pairs = rule(
            call_of(layer, inputs, cotangent, static_shapes=mode != "graph")
        )
        found[:] = [variable for variable, _ in pairs]
        halves = tf.constant(weights, inputs.dtype)
        return [
            (
                records.materialize(),
                records.squared_norms(),
                records.weighted_sum(halves),
                records.take(tf.constant(indices)).materialize(),
                records.grouped(2, halves).materialize(),
            )
            for _, records in pairs
        ]

    if mode != "eager":
        answers = tf.function(answers, jit_compile=mode == "jit")
    got = keras.tree.map_structure(np.asarray, answers(inputs, cotangent))

    assert [id(v) for v in found] == [id(v) for v in layer.trainable_variables]
    want = [gradient.astype("float64") for gradient in want]
    scale = np.sqrt(sum(_squares(gradient) for gradient in want))
    bound = RELATIVE[inputs.dtype.name] * scale
    assert np.all(scale > 0)
    for gradient, answer in zip(want, got, strict=True):
        full, norms, total, taken, grouped = answer
        assert full.shape == gradient.shape
        assert np.all(np.sqrt(_squares(full - gradient)) <= bound)
        # Never below: what is clipped is what is summed.
        squares = _squares(full.astype("float64"))
        assert np.all(norms >= squares * (1 - RELATIVE[inputs.dtype.name]))
        assert np.all(np.abs(norms - _squares(gradient)) <= 2 * bound * scale)
        summed = np.tensordot(weights, gradient, axes=1)
        assert np.linalg.norm(total - summed) <= 2 * bound.sum()
        assert np.all(
            np.sqrt(_squares(taken - gradient[indices])) <= bound[indices]
        )
        weighted = gradient * weights.reshape([-1] + [1] * (full.ndim - 1))
        groups = weighted.reshape([-1, 2, *full.shape[1:]]).sum(axis=1)
        error = np.sqrt(_squares(grouped - groups))
        assert np.all(error <= 2 * bound.reshape([-1, 2]).sum(axis=1))


def _squares(gradients):
    return np.sum(np.square(gradients), axis=tuple(range(1, gradients.ndim)))
