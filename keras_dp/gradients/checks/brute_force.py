"""Are per-example gradients those of automatic differentiation?"""

import keras
import numpy as np
import tensorflow as tf

from keras_dp.errors import GradientCheckError
from keras_dp.gradients.checks.trial import Trial
from keras_dp.gradients.engine import HookedPass
from keras_dp.gradients.records.records import GradientRecords


def compare_gradients(trial: Trial, ours: HookedPass, examples: int) -> bool:
    """Compares some gradients one by one, and a weighted sum of all.

    A gradient that is wrong in any row changes the sum, unless random weights
    hide it by chance.

    Args:
        trial: The model and its batch.
        ours: A pass over the batch.
        examples: How many gradients are compared one by one: half of them at
            the first rows, half at the last.

    Returns:
        Whether there was a finite example to compare.

    Raises:
        GradientCheckError: A gradient differs.
    """
    engine, batch = trial.engine, trial.batch
    values = [variable.value for variable in engine.variables]
    records = engine.records(ours.calls, ours.cotangents, batch)
    squares = [record.squared_norms() for record in records]
    trial.restore()
    # The reference is what Keras does, without any hook. Losses are compiled,
    # and a persistent tape over them would compile all their derivatives.
    with tf.GradientTape(persistent=True) as tape:
        outputs = trial.engine.call(trial.inputs)
    floats = [x for x in keras.tree.flatten(outputs) if x.dtype.is_floating]
    first = min(examples + 1, batch + 1) // 2
    last = max(first, batch - (examples - first))

    def expected(weights: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as last_part:
            last_part.watch(floats)
            losses = trial.losses_of(outputs)
        weights = tf.cast(weights, losses.dtype)
        zero = tf.UnconnectedGradients.ZERO
        cotangents, direct = last_part.gradient(
            losses, (floats, values), weights, zero
        )
        through = tape.gradient(floats, values, cotangents, zero)
        return [
            tf.cast(tf.convert_to_tensor(one), square.dtype)
            + tf.cast(tf.convert_to_tensor(other), square.dtype)
            for one, other, square in zip(through, direct, squares, strict=True)
        ]

    compared = False
    for row in [*range(first), *range(last, batch)]:
        want = expected(tf.one_hot(row, batch))
        compared |= _compare_example(trial, records, want, squares, row)
    if compared and np.isfinite(ours.losses).all():
        weights = tf.random.stateless_normal(
            [batch], [0, 0], dtype=ours.losses.dtype, alg="philox"
        )
        want = expected(weights)
        _compare_sum(trial, records, want, squares, weights)
    return compared


def _compare_example(
    trial: Trial,
    records: list[GradientRecords],
    want: list[tf.Tensor],
    squares: list[tf.Tensor],
    row: int,
) -> bool:
    total = float(tf.linalg.global_norm(want))
    if not np.isfinite(total):
        return False
    tolerance = trial.tolerance * max(total, 1e-9)
    only_this = tf.one_hot(row, trial.batch)
    for index, record in enumerate(records):
        error = float(tf.norm(record.weighted_sum(only_this) - want[index]))
        # Norms may be upper bounds, where terms cancel.
        norm = float(tf.sqrt(squares[index][row]))
        norm_error = float(tf.norm(want[index])) - norm
        # Negated, so that NaN fails.
        if not (error <= tolerance and norm_error <= tolerance):
            raise _difference(trial, index)
    return True


def _compare_sum(
    trial: Trial,
    records: list[GradientRecords],
    want: list[tf.Tensor],
    squares: list[tf.Tensor],
    weights: tf.Tensor,
) -> None:
    each = [
        float(tf.reduce_sum(tf.square(tf.cast(weights, s.dtype)) * s))
        for s in squares
    ]
    tolerance = trial.tolerance * max(sum(each) ** 0.5, 1e-9)
    if not np.isfinite(tolerance):
        return  # A gradient overflows; such an example contributes nothing.
    for index, record in enumerate(records):
        error = float(tf.norm(record.weighted_sum(weights) - want[index]))
        if not error <= tolerance:
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
