"""Are per-example gradients those of automatic differentiation?"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_dp.errors import GradientCheckError
from keras_dp.gradients.checks.trial import Trial
from keras_dp.gradients.records.records import all_finite
from keras_dp.keras_internals import keeping_variable_scope


class _Ours(NamedTuple):
    """Sum and norms of the gradients of a batch, by the engine.

    Attributes:
        sums: Their sum under weights, one tensor for each variable.
        squares: Their squared norms, `[variables, batch]`.
        losses: Shape `[batch]`.
    """

    sums: list[tf.Tensor]
    squares: tf.Tensor
    losses: tf.Tensor


def compare_gradients(trial: Trial, examples: int) -> bool:
    """Compares a weighted sum of all gradients, and the norms of some.

    A gradient that is wrong in any row changes the sum, unless random weights
    hide it by chance. Some rows, half of them the first, half the last, have
    larger weights: they are compared as closely as if they were alone, and so
    are their norms.

    Args:
        trial: The model and its batch.
        examples: How many rows.

    Returns:
        Whether there was a finite example to compare.

    Raises:
        GradientCheckError: A gradient differs.
    """
    batch = trial.batch
    first = min(examples + 1, batch + 1) // 2
    last = max(first, batch - (examples - first))
    rows = np.array([*range(first), *range(last, batch)])
    weights = trial.weights[-1].copy()
    weights[rows] *= batch**0.5
    reference = trial.traced(_expected(trial))

    def want(weights: np.ndarray) -> list[tf.Tensor]:
        trial.restore()
        gradients: list[tf.Tensor] = reference(
            trial.inputs, tf.constant(weights)
        )
        return gradients

    trial.restore()
    found = trial.traced(_ours(trial))(trial.inputs, tf.constant(weights))
    compared, whole = False, want(weights)
    of_all = _is_finite(found) and _are_finite(whole)
    if of_all:
        _compare_sums(trial, found, whole, weights)
    else:
        # An example overflows. It contributes nothing, but to this sum.
        careful = trial.traced(_ours(trial, careful=True))
    for row in rows:
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


def _ours(
    trial: Trial, *, careful: bool = False
) -> Callable[[Any, tf.Tensor], _Ours]:
    """Returns the function of inputs and weights `[batch]`.

    Args:
        trial: The model and its batch.
        careful: Whether examples may be not finite.
    """
    engine, batch = trial.engine, trial.batch

    def ours(inputs: Any, weights: tf.Tensor) -> _Ours:
        with keeping_variable_scope(), engine.computing():
            ran = engine.hooked_pass(inputs, trial.losses_of, batch)
            records = engine.records(ran.calls, ran.cotangents, batch)
            squares = [record.squared_norms() for record in records]
            with all_finite(certainly=not careful):
                sums = [record.weighted_sum(weights) for record in records]
        return _Ours(
            sums,
            tf.stack([tf.cast(square, tf.float64) for square in squares]),
            ran.losses,
        )

    return ours


def _expected(
    trial: Trial,
) -> Callable[[Any, tf.Tensor], list[tf.Tensor]]:
    """Returns the reference: what Keras does, without any hook."""
    variables = trial.engine.variables

    def expected(inputs: Any, weights: tf.Tensor) -> list[tf.Tensor]:
        values = [variable.value for variable in variables]
        with tf.GradientTape() as tape:
            # TensorFlow does not where a layer was frozen when it was built.
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


def _is_finite(found: _Ours) -> bool:
    return bool(
        np.isfinite(found.losses).all() and np.isfinite(found.squares).all()
    )


def _are_finite(gradients: list[tf.Tensor]) -> bool:
    return bool(np.isfinite(float(tf.linalg.global_norm(gradients))))


def _compare_sums(
    trial: Trial, found: _Ours, want: list[tf.Tensor], weights: np.ndarray
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
    trial: Trial, found: _Ours, want: list[tf.Tensor], row: int
) -> None:
    limit = trial.tolerance * max(float(tf.linalg.global_norm(want)), 1e-9)
    for index, expected in enumerate(want):
        # Norms may be upper bounds, where terms cancel.
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
