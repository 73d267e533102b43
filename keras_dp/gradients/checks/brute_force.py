"""Compares per-example gradients with automatic differentiation."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_dp.errors import GradientCheckError
from keras_dp.gradients.checks.trial import Pass, Trial
from keras_dp.keras_internals import keeping_variable_scope


def compare_gradients(trial: Trial, found: Pass) -> bool:
    """Compares a weighted sum of all gradients with the automatic one.

    A gradient that is wrong in any row changes the sum, unless random weights
    hide it by chance. `Trial.rows` have larger weights.

    If an example is not finite, each of `Trial.rows` is compared alone: its
    gradient and its norm.

    Args:
        trial: The model and its batch.
        found: The gradients of the batch from the engine.

    Returns:
        Whether the gradient of one of `Trial.rows` was finite.

    Raises:
        GradientCheckError: A gradient differs.
    """
    # One run takes less time than a trace, except for each step of a loop.
    reference = _expected(trial)
    if trial.has_loops:
        reference = trial.traced(reference)

    def want(weights: np.ndarray) -> list[tf.Tensor]:
        trial.restore()
        gradients: list[tf.Tensor] = reference(
            trial.inputs, tf.constant(weights)
        )
        return gradients

    whole = want(trial.weights)
    if found.is_finite and _are_finite(whole):
        _compare_sums(trial, found, whole, trial.weights)
        return True
    compared = False
    # An example overflows. In training its weight is 0, but not here.
    careful = trial.traced(_careful(trial))
    for row in trial.rows:
        alone = trial.only(row)
        single = want(alone)
        if not _are_finite(single):
            continue
        compared = True
        trial.restore()
        answer = careful(trial.inputs, tf.constant(alone))
        _compare_sums(trial, answer, single, alone)
        _compare_norms(trial, answer, row)
    return compared


def compare_norm(trial: Trial, found: Pass, row: int) -> None:
    """Compares the norm of an example with that of what it adds to the sum.

    The norm may be larger, because it may be a bound where terms cancel.

    Args:
        trial: The model and its batch.
        found: The gradients of a batch, whose sum is that of one row. Nothing
            is compared if they are not finite: `compare_gradients` looks at
            such a batch row by row.
        row: This row.

    Raises:
        GradientCheckError: The norm is smaller.
    """
    if found.is_finite and _are_finite(found.sums):
        _compare_norms(trial, found, row)


def _careful(trial: Trial) -> Callable[[Any, tf.Tensor], Pass]:
    """Returns a function for gradients where some examples are not finite."""

    def careful(inputs: Any, weights: tf.Tensor) -> Pass:
        with keeping_variable_scope():
            ran = trial.engine.hooked_pass(inputs, trial.losses_of, trial.batch)
            return trial.gradients(ran, weights, careful=True)

    return careful


def _expected(
    trial: Trial,
) -> Callable[[Any, tf.Tensor], list[tf.Tensor]]:
    """Returns the reference: a tape around the model, without any hook."""
    variables = trial.engine.variables

    def expected(inputs: Any, weights: tf.Tensor) -> list[tf.Tensor]:
        values = [variable.value for variable in variables]
        with tf.GradientTape() as tape:
            # By itself, a tape does not watch a variable that was made frozen.
            tape.watch(values)
            outputs = trial.engine.call(inputs)
            losses = trial.losses_of(outputs)
        gradients = tape.gradient(
            losses,
            values,
            tf.cast(weights, losses.dtype),
            tf.UnconnectedGradients.ZERO,
        )
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    return expected


def _are_finite(gradients: list[tf.Tensor]) -> bool:
    return bool(np.isfinite(float(tf.linalg.global_norm(gradients))))


def differing_sum(
    trial: Trial, found: Pass, want: list[tf.Tensor], weights: np.ndarray
) -> int | None:
    """Returns the first variable whose sums differ, `None` if none does.

    Args:
        trial: The model and its batch.
        found: A pass with these weights, whose norms say what is small.
        want: The weighted sum for each variable.
        weights: The weights of the examples, `[batch]`.
    """
    # 0 times the norm of an example that overflows is not 0.
    squares = np.where(weights != 0, found.squares, 0)
    total = float((np.square(weights) * squares).sum()) ** 0.5
    limit = trial.tolerance * max(total, 1e-9)
    for index, (ours, other) in enumerate(zip(found.sums, want, strict=True)):
        error = float(tf.norm(ours - tf.cast(other, ours.dtype)))
        # Negated, so that NaN differs.
        if not error <= limit:
            return index
    return None


def _compare_sums(
    trial: Trial, found: Pass, want: list[tf.Tensor], weights: np.ndarray
) -> None:
    index = differing_sum(trial, found, want, weights)
    if index is not None:
        raise _difference(trial, index)


def _compare_norms(trial: Trial, found: Pass, row: int) -> None:
    added = [float(tf.norm(total)) for total in found.sums]
    limit = trial.tolerance * max(math.hypot(*added), 1e-9)
    for index, norm in enumerate(added):
        # Negated, so that NaN fails.
        if not norm - float(found.squares[index, row]) ** 0.5 <= limit:
            raise _difference(trial, index)


def _difference(trial: Trial, index: int) -> GradientCheckError:
    path = trial.engine.variables[index].path
    return GradientCheckError(
        f"The per-example gradient of {path!r} differs from automatic "
        "differentiation. Its layer uses the variable in a way the library "
        "cannot see (outside the layer's call, or with a batch axis that is "
        "not the first). Move the variable into a layer that is called on the "
        "batch, or freeze it."
    )
