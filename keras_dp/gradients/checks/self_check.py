"""The self-check of a model and its engine on a batch of its data.

The tests of the library check rules in general. This checks the model that is
about to be trained, before anything is released. It compares per-example
gradients with automatic differentiation. It looks for examples that interact or
depend on their row, and for data that the model keeps.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp.errors import GradientCheckError
from keras_dp.gradients.checks.independence import (
    check_examples_apart,
    check_same_bits,
    differing_sum,
    wrong_gradient,
)
from keras_dp.gradients.checks.trial import (
    GradientsOf,
    LossesOf,
    Splits,
    SplitsOf,
    Trial,
    TrialPass,
    as_written,
    restore,
    rows_of,
)
from keras_dp.gradients.engine import GradientEngine
from keras_dp.gradients.records.records import in_float

# Variables that could hide a defect are raised to at least this.
_RAISED = 0.1


def self_check(
    engine: GradientEngine,
    inputs: Any,
    losses_of: LossesOf,
    batch: int,
    *,
    splits_of: SplitsOf = lambda _: [],
    gradients_of: GradientsOf | None = None,
    examples: int = 2,
    eagerly: bool = False,
    bits: bool = False,
) -> bool:
    """Tries the model and its engine on a batch.

    The weights are perturbed for the check. At their initial values, such as a
    head of zeros, a model can hide a defect. Other variables that are 0 or tiny
    are raised, because a factor that grows in training hides what it multiplies
    until then. If no example is finite then, the check is repeated without
    these changes. In the end all variables have the values from before.

    It costs one pass of the engine over the batch, one for each of `examples`
    in which all examples are moved by one row, and one pass of Keras. Where the
    graph does not prove that examples are kept apart, other examples are
    exchanged as well, and three passes more exchange parts of the batch. Each
    takes the memory of a step.

    Guarantee: the gradient of every row is compared with that of Keras. The
        loss and the norm of every row are compared in another row. Where the
        graph does not prove that examples are kept apart, every row is
        compared beside other examples, too. It does not find couplings that
        this batch does not show, such as those of rare inputs, nor those of
        single pairs of rows that no split of the batch separates. In place of
        an example that is not finite stands another one.

    Args:
        engine: The engine of the model to be checked.
        inputs: A batch as in training, leaves `[batch, ...]`.
        losses_of: Maps the model's outputs to losses `[batch]`.
        batch: Number of examples, at least 2.
        splits_of: Maps the model's outputs to pairs, one for each loss: the
            losses of the examples, `[batch]`, and that loss of the batch. Both
            are without weights and masks.
        gradients_of: The trace that training calls, for a model that draws no
            random numbers. Maps inputs, and the example of each row, to the
            gradients of the rows, and to the operations of the trace. By
            default, the engine is traced for the check.
        examples: How many examples have their norm compared with what they add
            to a sum, and all others exchanged.
        eagerly: Whether nothing is traced.
        bits: Whether what an example adds must have the same bits beside other
            examples.

    Returns:
        Whether finite gradients were compared.

    Raises:
        GradientCheckError: A gradient differs from that of Keras. Or examples
            interact, an example depends on its row, the loss of the batch is
            neither the sum nor the mean of the losses of its examples, or the
            model draws random numbers that cannot be repeated.
        UnsupportedLayerError: The model keeps what it sees in training.
    """

    def check() -> bool:
        return _check(
            Trial(
                engine,
                inputs,
                losses_of,
                batch,
                splits_of=splits_of,
                gradients_of=gradients_of,
                examples=examples,
                eagerly=eagerly,
            ),
            bits=bits,
        )

    try:
        return check()
    except GradientCheckError:
        # Were the hooks put on an axis that is as long as the batch?
        if not engine.settle_hooks_again(inputs, batch):
            raise
    return check()


def _check(trial: Trial, *, bits: bool) -> bool:
    weights = [(v, tf.identity(v.value)) for v in trial.engine.variables]
    tiny = [pair for pair in trial.state if _could_hide(pair[1])]
    raised = {id(variable) for variable, _ in tiny}
    trial.state = [pair for pair in trial.state if id(pair[0]) not in raised]
    try:
        for perturbation in (0.1, 0.0):
            _perturb(weights, perturbation)
            if perturbation:
                _raise_above_zero(tiny)
            else:
                restore(tiny)
            if _compared(trial, bits=bits):
                return True
        return False
    finally:
        restore(weights)
        restore(tiny)
        restore(trial.state)
        trial.forget()


def _compared(trial: Trial, *, bits: bool) -> bool:
    """Raises for a defect. Returns whether finite gradients were compared."""
    first = trial.run(trial.inputs, trial.weights)
    finite = first.finite
    if finite.any() and not finite.all():
        _check_overflow(trial, first, int(np.argmin(finite)))
        # In training its weight is 0, but 0 times infinity is NaN.
        others = np.where(finite, np.arange(trial.batch), np.argmax(finite))
        trial.inputs = rows_of(trial.inputs, others)
        first = trial.run(trial.inputs, trial.weights)
        trial.weights = np.where(first.finite, trial.weights, 0)
        first = trial.run(trial.inputs, trial.weights)
    check_examples_apart(trial, first)
    if bits:
        check_same_bits(trial, first)
    return _compare_gradients(trial, first)


def _check_overflow(trial: Trial, found: TrialPass, row: int) -> None:
    """Raises if the gradient of a row is finite, but its norm is NaN."""
    unknown = np.isnan(found.squares)[:, row]
    if unknown.any():
        alone = np.eye(trial.batch, dtype=np.float32)[row]
        if _are_finite(_automatic(trial, alone)[0]):
            raise wrong_gradient(trial, int(np.argmax(unknown)))


def _are_finite(gradients: list[tf.Tensor]) -> bool:
    return bool(np.isfinite(float(tf.linalg.global_norm(gradients))))


def _compare_gradients(trial: Trial, found: TrialPass) -> bool:
    """Compares a weighted sum of all gradients with the automatic one.

    A gradient that is wrong in any row changes the sum, unless random weights
    hide it by chance. `Trial.rows` have larger weights. Returns whether the
    gradients were finite.
    """
    want, splits = _automatic(trial, trial.weights)
    for losses, batch_loss in splits:
        check_loss_splits(losses, batch_loss)
    if not _are_finite(want):
        return False
    index = differing_sum(trial, found, want)
    if index is not None:
        raise wrong_gradient(trial, index)
    return bool(found.finite.any())


def _automatic(
    trial: Trial, weights: np.ndarray
) -> tuple[list[tf.Tensor], Splits]:
    """Returns a weighted sum of gradients from a tape without any hook.

    The losses come from the same outputs.
    """
    variables = trial.engine.variables

    def automatic(inputs: Any, weights: tf.Tensor) -> Any:
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
        sums = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return sums, trial.splits_of(outputs)

    # One run takes less time than a trace, except for each step of a loop.
    run = trial.traced(automatic) if trial.has_loops else automatic
    trial.restore()
    with as_written():
        sums, splits = run(trial.inputs, tf.constant(weights))
    return sums, splits


def _perturb(
    weights: list[tuple[keras.Variable, tf.Tensor]], scale: float
) -> None:
    """Adds noise to each weight, relative to the size of its variable."""
    for index, (variable, value) in enumerate(weights):
        # One by one, operations of TensorFlow would take ten times as long.
        wide = np.asarray(in_float(value))
        generator = np.random.Generator(np.random.Philox(index))
        noise = generator.standard_normal(wide.shape, wide.dtype.type)
        size = scale * max(float(np.sqrt(np.mean(wide * wide))), 0.5)
        moved = wide + noise * wide.dtype.type(size)
        variable.assign(tf.cast(moved, value.dtype))


def _could_hide(value: tf.Tensor) -> bool:
    """Whether a variable is 0 or a tiny scalar, which hides what it scales."""
    if value.dtype not in {tf.bfloat16, tf.float16, tf.float32, tf.float64}:
        return False
    largest = _RAISED if value.shape.num_elements() == 1 else 0.0
    return bool(tf.reduce_all(tf.abs(value) <= largest))  # False for NaN.


def _raise_above_zero(tiny: list[tuple[keras.Variable, tf.Tensor]]) -> None:
    """Sets each entry to a positive number, because it may be a variance."""
    for index, (variable, value) in enumerate(tiny):
        noise = tf.random.stateless_uniform(
            value.shape, [1, index], dtype=tf.float64, alg="philox"
        )
        variable.assign(tf.cast(_RAISED * (1 + noise), value.dtype))


def check_loss_splits(losses: tf.Tensor, batch_loss: tf.Tensor) -> None:
    """Raises if a loss of a batch is not the sum or mean over its examples.

    Args:
        losses: The loss of each example as a batch of one, `[batch]`, for
            outputs without masks.
        batch_loss: The same loss of the batch, without sample weights or masks.

    Raises:
        GradientCheckError: The loss of the batch is neither the sum nor the
            mean. Losses that are not finite are not compared.
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
