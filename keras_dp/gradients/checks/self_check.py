"""Does this model's engine do what it claims, on a few examples of its data?

Rules are tested in general; this looks at the one model that is about to be
trained, before anything is released: whether each per-example gradient is that
of automatic differentiation, whether examples interact, and whether the model
stores what it sees.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp.errors import GradientCheckError, UnsupportedLayerError
from keras_dp.gradients.capture.hooks import hooked
from keras_dp.gradients.engine import GradientEngine
from keras_dp.gradients.unsupported.variable_writes import (
    seed_ids,
    without_variable_writes,
)
from keras_dp.keras_internals import layers_of

LossesOf = Callable[[Any], tf.Tensor]

# Relative to an example's gradient norm. Rounding in float32 stays below 1e-5
# (Gram norms square the condition); a wrong rule is off by the order of 1.
_TOLERANCE = 1e-3
# The reference itself is computed in half precision there.
_TOLERANCE_HALF = 5e-2


def self_check(
    engine: GradientEngine,
    inputs: Any,
    losses_of: LossesOf,
    batch: int,
    *,
    examples: int = 4,
) -> bool:
    """Compares the engine with brute force on some examples, eagerly.

    Weights are perturbed meanwhile, because at their initial values (a head of
    zeros) a model can hide what it does. All variables are left as they were.
    Costs one backward pass over the batch per example compared, and five
    forward passes.

    Args:
        engine: Of the model to be checked.
        inputs: A batch as in training, leaves `[batch, ...]`.
        losses_of: Maps the model's outputs to losses `[batch]`.
        batch: Number of examples, at least 2.
        examples: How many of them, the first, to compare.

    Returns:
        Whether there was a finite example to compare.

    Raises:
        GradientCheckError: A gradient differs, examples interact, or the
            model draws random numbers that cannot be repeated.
        UnsupportedLayerError: The model changes its own state in training.
    """
    weights = [(v, tf.identity(v.value)) for v in engine.variables]
    state = _state(engine.model)
    try:
        with without_variable_writes(engine.model):
            losses_of(engine.call(inputs))
        for perturbation in (0.1, 0.0):
            _perturb(weights, perturbation)
            _check_independence(engine, inputs, losses_of, batch, state)
            _restore(state)
            tells = _compare_gradients(
                engine, inputs, losses_of, batch, examples, state
            )
            _check_state(engine.model, state)
            if tells:
                return True
        return False
    finally:
        _restore(weights)
        _restore(state)


def _perturb(
    weights: list[tuple[keras.Variable, tf.Tensor]], scale: float
) -> None:
    """Moves each weight by noise of a part of the size of its variable."""
    for index, (variable, value) in enumerate(weights):
        mean_square = tf.reduce_mean(tf.square(tf.cast(value, tf.float64)))
        size = scale * tf.maximum(tf.sqrt(mean_square), 0.5)
        noise = tf.random.stateless_normal(
            value.shape, [0, index], dtype=tf.float64, alg="philox"
        )
        variable.assign(value + tf.cast(size * noise, value.dtype))


def check_loss_splits(
    losses: tf.Tensor, batch_loss: tf.Tensor, has_masks: bool
) -> None:
    """Raises if the loss of a batch is not that of its examples.

    Args:
        losses: Each example's loss as a batch of one, `[batch]`; one loss.
        batch_loss: That loss of the batch, without sample weights.
        has_masks: Whether outputs are masked. Then Keras's own losses weigh
            examples by their unmasked entries, and nothing can be told.
    """
    total, count = float(tf.reduce_sum(losses)), int(losses.shape[0])
    whole = float(batch_loss)
    if has_masks or not np.isfinite([total, whole]).all():
        return
    scale = float(tf.reduce_sum(tf.abs(losses))) + 1e-6
    if min(abs(whole - total), abs(whole - total / count)) > 1e-3 * scale:
        raise GradientCheckError(
            "The loss must be a mean or sum over examples. The loss of a "
            "batch differs from both, so it couples examples, and per-example "
            "gradients would be those of another loss. Rewrite it so that it "
            "can be evaluated on one example."
        )


def _compare_gradients(
    engine: GradientEngine,
    inputs: Any,
    losses_of: LossesOf,
    batch: int,
    examples: int,
    state: list[tuple[keras.Variable, tf.Tensor]],
) -> bool:
    values = [variable.value for variable in engine.variables]
    # What is compared with must be what Keras does, without any hook.
    with tf.GradientTape(persistent=True) as tape:
        each = tf.unstack(losses_of(engine.call(inputs)))[:examples]
    _restore(state)  # The same dropout masks.
    with (
        tf.GradientTape(watch_accessed_variables=False) as hooking,
        hooked(engine.hooks, hooking, batch) as calls,
    ):
        losses = losses_of(engine.call(inputs))
    cotangents = hooking.gradient(
        losses,
        [call.outputs for call in calls],
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    records = engine.records(calls, cotangents, batch)
    norms = [record.squared_norms() for record in records]
    compared = False
    for index, loss in enumerate(each):
        expected = [
            tf.cast(tf.convert_to_tensor(gradient), norm.dtype)
            for gradient, norm in zip(
                tape.gradient(loss, values, unconnected_gradients="zero"),
                norms,
                strict=True,
            )
        ]
        only_this = tf.one_hot(index, batch)
        got = [record.weighted_sum(only_this) for record in records]
        squares = [norm[index] for norm in norms]
        compared |= _compare_example(engine, expected, got, squares)
    return compared


def _compare_example(
    engine: GradientEngine,
    expected: list[tf.Tensor],
    got: list[tf.Tensor],
    squares: list[tf.Tensor],
) -> bool:
    total = float(tf.linalg.global_norm(expected))
    if not np.isfinite(total):
        return False
    tolerance = _tolerance(engine.model) * max(total, 1e-9)
    for variable, want, have, square in zip(
        engine.variables, expected, got, squares, strict=True
    ):
        error = float(tf.norm(have - want))
        # Norms may be upper bounds, where terms cancel.
        norm_error = float(tf.norm(want)) - float(tf.sqrt(square))
        # Negated, so that NaN fails.
        if not (error <= tolerance and norm_error <= tolerance):
            raise GradientCheckError(
                f"The per-example gradient of {variable.path!r} differs from "
                "automatic differentiation. Its layer uses the variable in a "
                "way the library cannot see (outside the layer's call, or "
                "with a batch axis that is not the first). Move the variable "
                "into a layer that is called on the batch, or freeze it."
            )
    return True


def _check_independence(
    engine: GradientEngine,
    inputs: Any,
    losses_of: LossesOf,
    batch: int,
    state: list[tuple[keras.Variable, tf.Tensor]],
) -> None:
    """Compares losses among others with those among copies of oneself."""

    def losses_with(batch_inputs: Any) -> Any:
        _restore(state)  # The same dropout masks in every pass.
        outputs = engine.call(batch_inputs)
        return losses_of(outputs).numpy().astype(np.float64)

    first, again = losses_with(inputs), losses_with(inputs)
    if not np.allclose(first, again, rtol=1e-6, equal_nan=True):
        raise GradientCheckError(
            "Random numbers that the model draws in training must come from a "
            "keras.random.SeedGenerator of the layer that uses them. Without "
            "one they cannot be repeated, and whether examples interact "
            "cannot be told."
        )
    tolerance = _tolerance(engine.model)
    for index in (0, batch - 1):
        copies = keras.tree.map_structure(
            lambda leaf, i=index: tf.repeat(leaf[i : i + 1], batch, axis=0),
            inputs,
        )
        among_copies = losses_with(copies)[index]
        if not np.isfinite([first[index], among_copies]).all():
            continue
        scale = abs(first[index]) + np.abs(first[np.isfinite(first)]).mean()
        if abs(first[index] - among_copies) > tolerance * scale + 1e-6:
            raise GradientCheckError(
                "Each example's loss must depend on that example only. "
                "Changing the other examples of a batch changed the loss of "
                "one. Remove what makes examples interact (a statistic over "
                "axis 0, attention over the batch)."
            )


def _tolerance(model: keras.Model) -> float:
    half = any(
        layer.compute_dtype in {"float16", "bfloat16"}
        for layer in layers_of(model)
    )
    return _TOLERANCE_HALF if half else _TOLERANCE


def _state(model: keras.Model) -> list[tuple[keras.Variable, tf.Tensor]]:
    """Returns all variables that are not trained, with their values."""
    return [
        (variable, tf.identity(variable.value))
        for variable in model.variables
        if not variable.trainable
    ]


def _restore(state: list[tuple[keras.Variable, tf.Tensor]]) -> None:
    for variable, value in state:
        variable.assign(value)


def _check_state(
    model: keras.Model, before: list[tuple[keras.Variable, tf.Tensor]]
) -> None:
    seeds = seed_ids(model)
    for variable, value in before:
        now = variable.value.numpy()
        if (
            now.tobytes() != value.numpy().tobytes()
            and id(variable) not in seeds
        ):
            raise UnsupportedLayerError(
                f"The variable {variable.path!r} changes while the model is "
                "called in training mode. It would carry what it has seen of "
                "the data out of the model without noise. Freeze its layer "
                "with layer.trainable = False, or remove it."
            )
