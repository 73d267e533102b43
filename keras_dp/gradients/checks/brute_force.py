"""Compares per-example gradients with automatic differentiation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_dp.errors import GradientCheckError
from keras_dp.gradients.checks.trial import Gradients, Trial
from keras_dp.keras_internals import keeping_variable_scope


def compare_gradients(trial: Trial, found: Gradients) -> bool:
    """Compares a weighted sum of all gradients, and the norms of some.

    A gradient that is wrong in any row changes the sum, unless random weights
    hide it by chance. `Trial.rows` have larger weights, and their norms are
    compared, too. A norm may be too large, but not too small. If an example is
    not finite, the sum is not compared, and each of `Trial.rows` is compared
    alone.

    Args:
        trial: The model and its batch.
        found: The gradients of the batch from the engine.

    Returns:
        Whether the gradient of one of `Trial.rows` was finite.

    Raises:
        GradientCheckError: A gradient differs.
    """
    batch, weights = trial.batch, trial.own_weights
    reference = trial.traced(_expected(trial))

    def want(weights: np.ndarray) -> list[tf.Tensor]:
        trial.restore()
        gradients: list[tf.Tensor] = reference(
            trial.inputs, tf.constant(weights)
        )
        return gradients

    compared, whole = False, want(weights)
    of_all = _is_finite(found) and _are_finite(whole)
    if of_all:
        _compare_sums(trial, found, whole, weights)
    else:
        # An example overflows. In training its weight is 0, but not here.
        careful = trial.traced(_careful(trial))
    for row in trial.rows:
        alone = np.eye(batch, dtype=np.float32)[row]
        single = want(alone)
        if not _are_finite(single):
            continue
        compared = True
        _compare_norms(trial, found, single, row)
        if not of_all:
            trial.restore()
            answer = careful(trial.inputs, tf.constant(alone))
            _compare_sums(trial, answer, single, alone)
    return compared


def _careful(trial: Trial) -> Callable[[Any, tf.Tensor], Gradients]:
    """Returns a function for gradients where some examples are not finite."""

    def careful(inputs: Any, weights: tf.Tensor) -> Gradients:
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


def _is_finite(found: Gradients) -> bool:
    return bool(
        np.isfinite(found.losses).all() and np.isfinite(found.squares).all()
    )


def _are_finite(gradients: list[tf.Tensor]) -> bool:
    return bool(np.isfinite(float(tf.linalg.global_norm(gradients))))


def _compare_sums(
    trial: Trial, found: Gradients, want: list[tf.Tensor], weights: np.ndarray
) -> None:
    # 0 times the norm of an example that overflows is not 0.
    squares = np.where(weights != 0, found.squares, 0)
    total = float((np.square(weights) * squares).sum()) ** 0.5
    limit = trial.tolerance * max(total, 1e-9)
    for index, expected in enumerate(want):
        ours = found.sums[index]
        error = float(tf.norm(ours - tf.cast(expected, ours.dtype)))
        # Negated, so that NaN fails.
        if not error <= limit:
            raise _difference(trial, index)


def _compare_norms(
    trial: Trial, found: Gradients, want: list[tf.Tensor], row: int
) -> None:
    limit = trial.tolerance * max(float(tf.linalg.global_norm(want)), 1e-9)
    for index, expected in enumerate(want):
        # Norms may be upper bounds where terms cancel.
        norm = float(found.squares[index, row]) ** 0.5
        if not float(tf.norm(expected)) - norm <= limit:
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
