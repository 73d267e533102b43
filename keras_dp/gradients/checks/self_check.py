"""Does this model's engine do what it claims, on a batch of its data?

Rules are tested in general; this looks at the one model that is about to be
trained, before anything is released: whether per-example gradients are those
of automatic differentiation, whether examples interact or depend on their row,
and whether the model keeps data.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp.errors import GradientCheckError
from keras_dp.gradients.checks.brute_force import compare_gradients
from keras_dp.gradients.checks.independence import (
    check_independence,
    check_repeats,
    check_rows,
)
from keras_dp.gradients.checks.trial import (
    LossesOf,
    Trial,
    restore,
    state_of,
)
from keras_dp.gradients.engine import GradientEngine
from keras_dp.gradients.unsupported.variable_writes import (
    without_variable_writes,
)


def self_check(
    engine: GradientEngine,
    inputs: Any,
    losses_of: LossesOf,
    batch: int,
    *,
    examples: int = 4,
) -> bool:
    """Tries the model and its engine on a batch, eagerly.

    Weights are perturbed meanwhile, because at their initial values (a head of
    zeros) a model can hide what it does. All variables are left as they were.
    Costs one backward pass over the batch per gradient compared and about ten
    passes more, whatever the size of the batch.

    Guarantee: every row of the batch is looked at. Not found are couplings
    that this batch does not show, such as those of rare inputs, and those of
    single pairs of rows that no split of the batch separates.

    Args:
        engine: The engine of the model to be checked.
        inputs: A batch as in training, leaves `[batch, ...]`.
        losses_of: Maps the model's outputs to losses `[batch]`.
        batch: Number of examples, at least 2.
        examples: How many gradients are compared one by one.

    Returns:
        Whether there was a finite example to compare.

    Raises:
        GradientCheckError: A gradient differs, examples interact, one depends
            on its row, or the model draws random numbers that cannot be
            repeated.
        UnsupportedLayerError: The model keeps what it sees in training.
    """
    weights = [(v, tf.identity(v.value)) for v in engine.variables]
    trial = Trial(engine, inputs, losses_of, batch, state_of(engine.model))
    try:
        with without_variable_writes(engine.model):
            losses_of(engine.call(inputs))
        for perturbation in (0.1, 0.0):
            _perturb(weights, perturbation)
            if _finds_nothing(trial, examples):
                return True
        return False
    finally:
        restore(weights)
        restore(trial.state)


def _finds_nothing(trial: Trial, examples: int) -> bool:
    """Raises for what is wrong; returns whether there was something finite."""
    is_random = check_repeats(trial)
    first = trial.hooked_pass(trial.inputs)
    check_independence(trial, first)
    check_rows(trial, is_random=is_random)
    return compare_gradients(trial, first, examples)


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
