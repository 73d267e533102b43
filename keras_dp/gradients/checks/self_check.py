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
from keras_dp.gradients.checks.independence import check_examples_apart
from keras_dp.gradients.checks.trial import (
    LossesOf,
    SplitsOf,
    Trial,
    restore,
)
from keras_dp.gradients.engine import GradientEngine
from keras_dp.gradients.records.records import in_float

# Variables that could hide something are raised to at least this.
_RAISED = 0.1


def self_check(
    engine: GradientEngine,
    inputs: Any,
    losses_of: LossesOf,
    batch: int,
    *,
    splits_of: SplitsOf = lambda _: [],
    examples: int = 2,
    eagerly: bool = False,
) -> bool:
    """Tries the model and its engine on a batch.

    It perturbs the weights meanwhile. At their initial values, such as a head
    of zeros, a model can hide what it does. It also raises other variables that
    are 0 or tiny: a factor that grows in training hides what it multiplies
    until then. All variables are left as they were.

    It costs four passes of the engine over the batch and `examples + 1` passes
    of Keras. Each takes the memory of a step.

    Guarantee: every row of the batch is looked at. It does not find couplings
    that this batch does not show, such as those of rare inputs, nor those of
    single pairs of rows that no split of the batch separates.

    Args:
        engine: The engine of the model to be checked.
        inputs: A batch as in training, leaves `[batch, ...]`.
        losses_of: Maps the model's outputs to losses `[batch]`.
        batch: Number of examples, at least 2.
        splits_of: Maps the model's outputs to pairs, one for each loss: the
            losses of the examples, `[batch]`, and that loss of the batch. Both
            are without weights and masks.
        examples: How many gradients are compared one by one: half of them of
            the first examples, half of the last.
        eagerly: Whether nothing is traced.

    Returns:
        Whether there was a finite example to compare.

    Raises:
        GradientCheckError: A gradient differs from that of Keras. Or examples
            interact, an example depends on its row, the loss of the batch is
            neither the sum nor the mean of the losses of its examples, or the
            model draws random numbers that cannot be repeated.
        UnsupportedLayerError: The model keeps what it sees in training.
    """
    weights = [(v, tf.identity(v.value)) for v in engine.variables]
    trial = Trial(
        engine,
        inputs,
        losses_of,
        batch,
        splits_of=splits_of,
        examples=examples,
        eagerly=eagerly,
    )
    closed = [pair for pair in trial.state if _could_hide(pair[1])]
    opened = {id(variable) for variable, _ in closed}
    trial.state = [pair for pair in trial.state if id(pair[0]) not in opened]
    try:
        for perturbation in (0.1, 0.0):
            _perturb(weights, perturbation)
            if perturbation:
                _open(closed)
            else:
                restore(closed)
            if _finds_nothing(trial):
                return True
        return False
    finally:
        restore(weights)
        restore(closed)
        restore(trial.state)
        trial.forget()


def _finds_nothing(trial: Trial) -> bool:
    """Raises for what is wrong; returns whether there was something finite."""
    first = trial.run(trial.inputs)
    for losses, batch_loss in first.splits:
        check_loss_splits(losses, batch_loss)
    check_examples_apart(trial, first)
    return compare_gradients(trial, first.gradients)


def _perturb(
    weights: list[tuple[keras.Variable, tf.Tensor]], scale: float
) -> None:
    """Moves each weight by noise of a part of the size of its variable."""
    for index, (variable, value) in enumerate(weights):
        wide = in_float(value)
        mean_square = tf.reduce_mean(tf.square(wide))
        size = scale * tf.maximum(tf.sqrt(mean_square), 0.5)
        noise = tf.random.stateless_normal(
            value.shape, [0, index], dtype=wide.dtype, alg="philox"
        )
        variable.assign(value + tf.cast(size * noise, value.dtype))


def _could_hide(value: tf.Tensor) -> bool:
    """Whether a variable is 0, or a tiny factor: what it multiplies is gone."""
    if value.dtype not in {tf.bfloat16, tf.float16, tf.float32, tf.float64}:
        return False
    largest = _RAISED if value.shape.num_elements() == 1 else 0.0
    return bool(tf.reduce_all(tf.abs(value) <= largest))  # False for NaN.


def _open(closed: list[tuple[keras.Variable, tf.Tensor]]) -> None:
    """Sets each entry to a positive number, which a variance may be, too."""
    for index, (variable, value) in enumerate(closed):
        noise = tf.random.stateless_uniform(
            value.shape, [1, index], dtype=tf.float64, alg="philox"
        )
        variable.assign(tf.cast(_RAISED * (1 + noise), value.dtype))


def check_loss_splits(losses: tf.Tensor, batch_loss: tf.Tensor) -> None:
    """Raises if the loss of a batch is not that of its examples.

    Args:
        losses: One of the losses: of each example as a batch of one, `[batch]`,
            of outputs without masks.
        batch_loss: The same loss of the batch, without sample weights or masks.
    """
    total, count = float(tf.reduce_sum(losses)), int(losses.shape[0])
    whole = float(batch_loss)
    if not np.isfinite([total, whole]).all():
        return
    scale = float(tf.reduce_sum(tf.abs(losses))) + 1e-6
    if min(abs(whole - total), abs(whole - total / count)) > 1e-3 * scale:
        raise GradientCheckError(
            "The loss must be a mean or sum over examples. The loss of a "
            "batch differs from both, so it couples examples, and per-example "
            "gradients would be those of another loss. Rewrite it so that it "
            "can be evaluated on one example."
        )
