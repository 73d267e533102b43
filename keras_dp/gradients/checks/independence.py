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
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp.errors import GradientCheckError
from keras_dp.gradients.checks.brute_force import compare_norm, differing_sum
from keras_dp.gradients.checks.culprit import differing_layer, rows_differ
from keras_dp.gradients.checks.trial import Pass, Trial
from keras_dp.gradients.layer_calls import current_call, replaced_call
from keras_dp.keras_internals import (
    layers_of,
    seed_generators_of,
    sublayers_of,
    takes_training,
)

# If losses differ by more than this part of the tolerance, numbers are drawn.
_SAME = 0.01


def check_examples_apart(trial: Trial, first: Pass) -> None:
    """Raises if what an example adds depends on others, or on its row.

    In a pass, some examples are kept and move into the next row, and all other
    examples are exchanged. The losses of those that are kept are compared, and
    the norms of their gradients. In one pass each, an example of `Trial.rows`
    is kept alone, and its norm is compared with what it adds to the sum. If
    the graphs prove that examples are kept apart, all of them are kept in one
    more pass, so that every row is looked at. Else each part of the batch is
    kept in one more pass, and the sums of all parts are compared with that of
    the batch.

    If something differs, the examples are exchanged alone, and moved alone, and
    the error says which of these changed what they add. If neither does, and
    the model draws random numbers in training, there is no error: the numbers
    of the rows can be the reason.

    Args:
        trial: The model and its batch.
        first: A pass over the batch as it is.

    Raises:
        GradientCheckError: Another example or the row changed what an example
            adds, random numbers cannot be repeated, or a norm is too small.
    """
    rows, is_apart = _next_rows(trial), True

    def keeping(kept: np.ndarray, weights: np.ndarray) -> Pass:
        nonlocal is_apart
        moved = rows_of(trial.inputs, _exchanged(kept)[rows])
        second = trial.run(moved, weights, rows)
        is_apart = is_apart and not _differ(trial, first, second, kept)
        return second

    if trial.engine.is_proven_apart:
        keeping(np.ones(trial.batch, bool), trial.weights)
    else:
        added = [keeping(*part).sums for part in _parts(trial)]
        total = [tf.add_n(list(each)) for each in zip(*added, strict=True)]
        whole = first._replace(sums=total)
        is_apart = is_apart and not _sums_differ(trial, first, whole)
    for row in trial.rows:
        alone = trial.only(row)
        compare_norm(trial, keeping(alone == 1, alone), row)
    if is_apart:
        return
    is_random = check_repeats(trial)
    check_independence(trial)
    check_rows(trial, is_random=is_random)
    if not is_random:
        raise GradientCheckError(
            "What an example adds must not depend on other examples or on its "
            "row. Moving it by one row and changing the others changed its "
            "loss or its gradient. Remove what makes examples interact, and "
            "what computes with the number of a row."
        )


def check_same_bits(trial: Trial, first: Pass) -> None:
    """Raises if other examples change a bit of what an example adds.

    A bound that holds in floating point assumes it: what all other examples add
    must cancel, to the last bit, between two neighbouring samples.

    Args:
        trial: The model and its batch.
        first: A pass over the batch as it is.

    Raises:
        GradientCheckError: A bit of a loss or of a norm changed.
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
                "precision='assumed'."
            )


def _parts(trial: Trial) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the examples of each part, and their weights, each `[batch]`.

    The parts are random, but no two neighbours are in one part.
    """
    steps = np.random.SeedSequence(0).generate_state(trial.batch) % 2 + 1
    steps[:3] = 1  # No part is empty.
    parts = np.cumsum(steps) % 3 if trial.batch > 2 else np.arange(2)
    kept = [parts == part for part in range(max(parts) + 1)]
    return [(each, np.where(each, trial.weights, 0)) for each in kept]


def _next_rows(trial: Trial) -> np.ndarray:
    """Returns the example of each row, after all moved into the next row."""
    return np.roll(np.arange(trial.batch), 1)


def _exchanged(kept: np.ndarray) -> np.ndarray:
    """Returns the example of each row, where one replaces all not kept."""
    return np.where(kept, np.arange(len(kept)), np.argmax(kept))


def check_repeats(trial: Trial) -> bool:
    """Returns whether the model draws random numbers in training.

    Args:
        trial: The model and its batch.

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


def check_independence(trial: Trial) -> None:
    """Exchanges some examples, and compares what the others add.

    Args:
        trial: The model and its batch.

    Raises:
        GradientCheckError: Another example changed it.
    """
    for kept, weights in _parts(trial):
        changed = rows_of(trial.inputs, _exchanged(kept))
        first = trial.run(trial.inputs, weights)
        if _differ(trial, first, trial.run(changed, weights), kept, sums=True):
            layer = differing_layer(trial, changed, kept)
            raise GradientCheckError(
                "Each example's loss and gradient must depend on that example "
                "only. Changing the other examples of a batch changed them."
                f"{layer} Remove what makes examples interact (a statistic "
                "over axis 0, attention over the batch)."
            )


def check_rows(trial: Trial, *, is_random: bool) -> None:
    """Moves every example into the next row, and compares what it adds.

    Args:
        trial: The model and its batch.
        is_random: Whether rows have random numbers of their own in training,
            which move along with the examples. If that does not make the
            results equal, the model is compared as it is called without
            training. Its outputs are also compared in training, with the
            layers that draw called without training.

    Raises:
        GradientCheckError: The row changed the result.
    """
    rows, every = _next_rows(trial), np.ones(trial.batch, bool)
    moved = rows_of(trial.inputs, rows)

    def differs(*, training: bool) -> bool:
        first, second = (
            trial.run(inputs, trial.weights, own, training=training)
            for inputs, own in ((trial.inputs, None), (moved, rows))
        )
        return _differ(trial, first, second, every, sums=True)

    if not differs(training=True):
        return
    if not is_random or differs(training=False):
        training = not is_random
        raise _depends_on_row(
            differing_layer(trial, moved, every, rows, training=training)
        )
    with _without_draws(trial.engine.model):
        layer = differing_layer(trial, moved, every, rows)
        if layer:
            raise _depends_on_row(layer)


def _depends_on_row(layer: str) -> GradientCheckError:
    return GradientCheckError(
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


def rows_of(nest: Any, rows: np.ndarray) -> Any:
    """Returns the examples at `rows` of all tensors."""
    return keras.tree.map_structure(lambda leaf: tf.gather(leaf, rows), nest)


def _differ(
    trial: Trial,
    first: Pass,
    second: Pass,
    kept: np.ndarray,
    *,
    sums: bool = False,
) -> bool:
    """Whether two passes differ.

    Args:
        trial: The model and its batch.
        first: A pass.
        second: Another pass.
        kept: Which examples are compared, `[batch]`.
        sums: Whether the sums are compared, too. The weights must be the same.
    """
    losses = np.asarray(first.losses), np.asarray(second.losses)
    norms = (
        np.sqrt(np.asarray(first.squares)),
        np.sqrt(np.asarray(second.squares)),
    )
    return (
        rows_differ(*losses, kept, trial.tolerance)
        or rows_differ(norms[0].T, norms[1].T, kept, trial.tolerance)
        or (sums and _sums_differ(trial, first, second))
    )


def _sums_differ(trial: Trial, first: Pass, second: Pass) -> bool:
    """Whether the sums of two passes with the same weights differ."""
    are_finite = first.is_finite and second.is_finite
    return are_finite and (
        differing_sum(trial, first, second.sums, trial.weights) is not None
    )
