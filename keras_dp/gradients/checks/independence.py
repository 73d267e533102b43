"""Checks that other examples and rows do not change what an example adds.

An example adds its loss and its gradient. These may depend on the weights, on
the example, and on random numbers. The random numbers of a layer may differ
from row to row, as in `Dropout`.

The rows of a sample are random: the sampler puts each record into a random
row, independently of all records. Two neighbouring samples can therefore be
drawn together so that every record they share stands in the same row, and
meets the same random numbers there. A layer that computes with the number of
the row would not break this argument. It is refused all the same: the number
says nothing about the example, and batches that the caller cut from a list do
not have random rows.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp.errors import GradientCheckError
from keras_dp.gradients.checks.culprit import differing_layer, rows_differ
from keras_dp.gradients.checks.trial import Trial, TrialPass, rows_of
from keras_dp.gradients.layer_calls import current_call, replaced_call
from keras_dp.keras_internals import (
    layers_of,
    seed_generators_of,
    sublayers_of,
    takes_training,
)

# If losses differ by more than this part of the tolerance, numbers are drawn.
_SAME = 0.01


def check_examples_apart(trial: Trial, first: TrialPass) -> None:
    """Raises if what an example adds depends on others, or on its row.

    All examples move into the next row. Their losses are compared, and the
    norms of their gradients. One pass for each of `Trial.rows` also compares
    the norm of this example with what it adds to the sum. If the graphs do not
    prove that examples are kept apart, all others are exchanged in these
    passes; and one pass for each part of the batch exchanges all others, and
    compares the sum over all parts.

    Args:
        trial: The model and its batch.
        first: A pass over the batch as it is.

    Raises:
        GradientCheckError: Another example or the row changed what an example
            adds, and the message names the first layer to do so. Or random
            numbers cannot be repeated, or a norm is too small.
    """
    next_rows, is_apart = _next_rows(trial), True

    def keeping(kept: np.ndarray, weights: np.ndarray) -> TrialPass:
        nonlocal is_apart
        moved = rows_of(trial.inputs, _exchanged(kept)[next_rows])
        second = trial.run(moved, weights, next_rows)
        is_apart = is_apart and not _differ(trial, first, second, kept)
        return second

    is_proven = trial.engine.is_proven_apart
    if not is_proven:
        parts = _parts(trial)
        added = [keeping(each, trial.weights * each).sums for each in parts]
        total = [tf.add_n(list(each)) for each in zip(*added, strict=True)]
        is_apart = is_apart and differing_sum(trial, first, total) is None
    for row in trial.rows:
        alone = np.eye(trial.batch, dtype=np.float32)[row]
        kept = (alone == 1) | is_proven
        _check_norm(trial, keeping(kept, alone), row)
    if not is_apart:
        _find_reason(trial)


def _check_norm(trial: Trial, found: TrialPass, row: int) -> None:
    """Compares the norm of an example with that of what it adds to the sum.

    The norm may be larger, because it may be a bound where terms cancel. The
    sum of the pass is that of the row alone.
    """
    if not found.finite.all():
        return
    added = [float(tf.norm(total)) for total in found.sums]
    limit = trial.tolerance * max(math.hypot(*added), 1e-9)
    for index, norm in enumerate(added):
        # Negated, so that NaN fails.
        if not norm - float(found.squares[index, row]) ** 0.5 <= limit:
            raise wrong_gradient(trial, index)


def wrong_gradient(trial: Trial, index: int) -> GradientCheckError:
    """Returns the error for a variable whose gradients or norms are wrong."""
    path = trial.engine.variables[index].path
    return GradientCheckError(
        f"The per-example gradient of {path!r} differs from automatic "
        "differentiation. Its layer uses the variable in a way the library "
        "cannot see (outside the layer's call, or with a batch axis that is "
        "not the first). Move the variable into a layer that is called on the "
        "batch, or freeze it."
    )


def check_same_bits(trial: Trial, first: TrialPass) -> None:
    """Raises if other examples change a bit of what an example adds.

    A bound that holds in floating point assumes it: what all other examples add
    must cancel, to the last bit, between two neighbouring samples.
    """
    kept = np.arange(trial.batch) % 2 == 0
    changed = rows_of(trial.inputs, _exchanged(kept))
    second = trial.run(changed, trial.weights)
    for one, other in (
        (first.losses, second.losses),
        (np.transpose(first.squares), np.transpose(second.squares)),
    ):
        bits = np.asarray(one)[kept].tobytes()
        if bits != np.asarray(other)[kept].tobytes():
            raise GradientCheckError(
                "With precision='proven', what an example adds must have the "
                "same bits whatever the other examples are. Exchanging every "
                "second example changed the last bits of the others' losses or "
                "gradient norms. Use deterministic kernels "
                "(tf.config.experimental.enable_op_determinism()), or "
                "precision='assumed', or noise=\"independent\" of make_private."
            )


def _parts(trial: Trial) -> list[np.ndarray]:
    """Returns which examples are in each part, `[batch]`.

    The parts are random, but no two neighbours are in one part.
    """
    steps = np.random.SeedSequence(0).generate_state(trial.batch) % 2 + 1
    steps[:3] = 1  # No part is empty.
    parts = np.cumsum(steps) % 3 if trial.batch > 2 else np.arange(2)
    return [parts == part for part in range(max(parts) + 1)]


def _next_rows(trial: Trial) -> np.ndarray:
    """Returns the example of each row, after all moved into the next row."""
    return np.roll(np.arange(trial.batch), 1)


def _exchanged(kept: np.ndarray) -> np.ndarray:
    """Returns the example of each row, where one replaces all not kept."""
    return np.where(kept, np.arange(len(kept)), np.argmax(kept))


def _differ(
    trial: Trial, one: TrialPass, two: TrialPass, kept: np.ndarray
) -> bool:
    """Whether losses or norms of the kept examples differ in two passes."""
    return any(
        rows_differ(first, second, kept, trial.tolerance)
        for first, second in zip(
            _by_example(one), _by_example(two), strict=True
        )
    )


def _by_example(found: TrialPass) -> tuple[np.ndarray, np.ndarray]:
    """Returns losses and norms, each `[batch, ...]`."""
    return np.asarray(found.losses), np.sqrt(np.transpose(found.squares))


def differing_sum(
    trial: Trial, found: TrialPass, want: list[tf.Tensor]
) -> int | None:
    """Returns the first variable whose sums differ, `None` if none does.

    The norms of the pass say what is small. Sums that are not finite are not
    compared.
    """
    # 0 times the norm of an example that overflows is not 0.
    squares = np.where(trial.weights != 0, found.squares, 0)
    total = float((np.square(trial.weights) * squares).sum()) ** 0.5
    if not np.isfinite(total):
        return None
    limit = trial.tolerance * max(total, 1e-9)
    for index, (ours, other) in enumerate(zip(found.sums, want, strict=True)):
        error = float(tf.norm(ours - tf.cast(other, ours.dtype)))
        # Negated, so that NaN differs.
        if not error <= limit:
            return index
    return None


def _find_reason(trial: Trial) -> None:
    """Exchanges examples alone, then moves them alone, after both differed.

    If neither changes what they add, and the model draws random numbers in
    training, there is no error: the numbers of the rows can be the reason.
    """
    is_random = _draws(trial)
    for kept in _parts(trial):
        changed = rows_of(trial.inputs, _exchanged(kept))
        if _changes(trial, changed, kept):
            layer = differing_layer(trial, changed, kept)
            raise GradientCheckError(
                "Each example's loss and gradient must depend on that example "
                "only. Changing the other examples of a batch changed them."
                f"{layer} Remove what makes examples interact (a statistic "
                "over axis 0, attention over the batch)."
            )
    _check_rows(trial, is_random=is_random)
    if not is_random:
        raise GradientCheckError(
            "What an example adds must not depend on other examples or on its "
            "row. Moving it by one row and changing the others changed its "
            "loss or its gradient. Remove what makes examples interact, and "
            "what computes with the number of a row."
        )


def _changes(
    trial: Trial,
    changed: Any,
    kept: np.ndarray,
    rows: np.ndarray | None = None,
    *,
    training: bool = True,
) -> bool:
    """Whether other inputs change what the kept examples add.

    The arguments are those of `Trial.run`, for the other inputs.
    """
    weights = trial.weights * kept
    first = trial.run(trial.inputs, weights, training=training)
    second = trial.run(changed, weights, rows, training=training)
    return _differ(trial, first, second, kept) or (
        differing_sum(trial, first, second.sums) is not None
    )


def _draws(trial: Trial) -> bool:
    """Whether the model draws random numbers in training.

    Raises:
        GradientCheckError: It draws random numbers that cannot be repeated.
    """

    def losses(*, restores: bool) -> np.ndarray:
        ran = trial.run(trial.inputs, trial.weights, restores=restores)
        return np.asarray(ran.losses)

    first = losses(restores=True)
    every, limit = np.ones(trial.batch, bool), trial.tolerance * _SAME
    if not rows_differ(first, losses(restores=False), every, limit):
        return False
    if rows_differ(first, losses(restores=True), every, limit):
        raise GradientCheckError(
            "Random numbers that the model draws in training must come from a "
            "keras.random.SeedGenerator of the layer that uses them. Without "
            "one they cannot be repeated, and whether examples interact "
            "cannot be told."
        )
    return True


def _check_rows(trial: Trial, *, is_random: bool) -> None:
    """Moves every example into the next row, and compares what it adds.

    If rows have random numbers of their own in training, these move along with
    the examples. If that does not make the results equal, the model is compared
    as it is called without training. Its outputs are also compared in training,
    with the layers that draw called without training.
    """
    rows, every = _next_rows(trial), np.ones(trial.batch, bool)
    moved = rows_of(trial.inputs, rows)
    if not _changes(trial, moved, every, rows):
        return
    if not is_random or _changes(trial, moved, every, rows, training=False):
        layer = differing_layer(
            trial, moved, every, rows, training=not is_random
        )
    else:
        with _without_draws(trial.engine.model):
            layer = differing_layer(trial, moved, every, rows)
        if not layer:
            return
    raise GradientCheckError(
        "What an example adds must not depend on its row in the batch. "
        f"Moving all examples by one row changed their losses or gradients."
        f"{layer} Remove what computes with the number of a row. Draw random "
        "numbers by keras.random, with a keras.random.SeedGenerator of the "
        "layer: they may differ between rows, and are moved with them."
    )


@contextlib.contextmanager
def _without_draws(model: keras.Model) -> Iterator[None]:
    """Calls the layers that own seeds as they are called without training."""

    def quiet(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # Keras takes `training` by its name only.
            return original(*args, **{**kwargs, "training": False})

        return call

    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            if takes_training(layer) and _owns_seeds(layer):
                call = quiet(current_call(layer))
                stack.enter_context(replaced_call(layer, call))
        yield


def _owns_seeds(layer: keras.Layer) -> bool:
    inside = {
        id(generator)
        for sublayer in sublayers_of(layer)
        for generator in seed_generators_of(sublayer)
    }
    return any(id(each) not in inside for each in seed_generators_of(layer))
