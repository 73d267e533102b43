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
from keras_dp.gradients.checks.brute_force import compare_norm
from keras_dp.gradients.checks.culprit import differing_layer
from keras_dp.gradients.checks.trial import DigestedPass, Trial
from keras_dp.gradients.layer_calls import current_call, replaced_call
from keras_dp.keras_internals import (
    layers_of,
    seed_generators_of,
    sublayers_of,
    takes_training,
)

# If outputs differ by more than this part of the tolerance, numbers are drawn.
_SAME = 0.01


def check_examples_apart(trial: Trial, first: DigestedPass) -> None:
    """Raises if what an example adds depends on others, or on its row.

    The batch is split into parts. In one pass for each part, its examples move
    into the next row, all other examples are exchanged, and what the part adds
    is compared. If that changed, the examples are exchanged alone, and moved
    alone, and the error says which of these changed it. If neither does, and
    the model draws random numbers in training, there is no error: the numbers
    of the rows can be the reason.

    The sum of the gradients of each of these passes is that of one example of
    the part. The norm of this example is compared with it.

    Args:
        trial: The model and its batch.
        first: A pass over the batch as it is.

    Raises:
        GradientCheckError: Another example or the row changed what an example
            adds, random numbers cannot be repeated, or a norm is too small.
    """
    rows = _next_rows(trial)
    is_explained = False
    for part in range(max(trial.parts) + 1):
        kept = trial.parts == part
        moved = rows_of(trial.inputs, _exchanged(kept)[rows])
        own = trial.rows[part]
        second = trial.run(moved, rows, alone=own)
        place = _difference(trial, first, second, kept, part, rows)
        if place is not None and not is_explained:
            is_random = check_repeats(trial)
            check_independence(trial, first)
            check_rows(trial, first, is_random=is_random)
            if not is_random:
                raise GradientCheckError(
                    "What an example adds must not depend on other examples "
                    "or on its row. Moving it by one row and changing the "
                    f"others changed {place}. Remove what makes examples "
                    "interact, and what computes with the number of a row."
                )
            is_explained = True
        compare_norm(trial, second.gradients, int(np.argmax(rows == own)))


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
    first = trial.run(trial.inputs)

    def differs(second: DigestedPass) -> bool:
        return trial.differ(
            first.outputs,
            second.outputs,
            np.ones(trial.batch, bool),
            tolerance=trial.tolerance * _SAME,
        )

    if not differs(trial.run(trial.inputs, restores=False)):
        return False
    if differs(trial.run(trial.inputs)):
        raise GradientCheckError(
            "Random numbers that the model draws in training must come from a "
            "keras.random.SeedGenerator of the layer that uses them. Without "
            "one they cannot be repeated, and whether examples interact "
            "cannot be told."
        )
    return True


def check_independence(trial: Trial, first: DigestedPass) -> None:
    """Exchanges some examples, and compares what the others add.

    Each part of the batch is kept in one pass, in which all other examples are
    exchanged. The pass compares an example's loss, its inputs to the layers
    that own weights, and the cotangents of their outputs. These determine its
    gradient.

    Args:
        trial: The model and its batch.
        first: A pass over the batch as it is.

    Raises:
        GradientCheckError: Another example changed one of them.
    """
    for part in range(max(trial.parts) + 1):
        kept = trial.parts == part
        changed = rows_of(trial.inputs, _exchanged(kept))
        place = _difference(trial, first, trial.run(changed), kept, part)
        if place is not None:
            layer = differing_layer(trial, changed, kept)
            raise GradientCheckError(
                "Each example's loss and gradient must depend on that example "
                "only. Changing the other examples of a batch changed "
                f"{place}.{layer} Remove what makes examples interact (a "
                "statistic over axis 0, attention over the batch)."
            )


def check_rows(trial: Trial, first: DigestedPass, *, is_random: bool) -> None:
    """Moves every example into the next row, and compares what it adds.

    Args:
        trial: The model and its batch.
        first: A pass over the batch as it is.
        is_random: Whether rows have random numbers of their own in training,
            which move along with the examples. If that does not make the
            results equal, the model is compared as it is called without
            training. Its outputs are also compared in training, with the
            layers that draw called without training.

    Raises:
        GradientCheckError: The row changed the result.
    """
    rows = _next_rows(trial)
    moved = rows_of(trial.inputs, rows)
    everywhere = np.ones(trial.batch, bool)
    second = trial.run(moved, rows)
    place = _difference(trial, first, second, everywhere, rows=rows)
    training = not is_random
    if is_random:
        if place is None:
            return
        first, second = (
            trial.run(inputs, own, training=False)
            for inputs, own in ((trial.inputs, None), (moved, rows))
        )
        place = _difference(trial, first, second, everywhere, rows=rows)
    if place is not None:
        layer = differing_layer(
            trial, moved, everywhere, rows, training=training
        )
        raise _depends_on_row(place, layer)
    if not is_random:
        return
    with _without_draws(trial.engine.model):
        one, two = (
            trial.digests(trial.outputs(inputs))
            for inputs in (trial.inputs, moved)
        )
        if trial.differ(one, two, everywhere, rows):
            layer = differing_layer(trial, moved, everywhere, rows)
            raise _depends_on_row("the outputs of the model", layer)


def _depends_on_row(place: str, layer: str) -> GradientCheckError:
    return GradientCheckError(
        "What an example adds must not depend on its row in the batch. "
        f"Moving all examples by one row changed {place}.{layer} Remove "
        "what computes with the number of a row. Draw random numbers by "
        "keras.random, with a keras.random.SeedGenerator of the layer: they "
        "may differ between rows, and are moved with them."
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


def _difference(
    trial: Trial,
    first: DigestedPass,
    second: DigestedPass,
    kept: np.ndarray,
    part: int = -1,
    rows: np.ndarray | None = None,
) -> str | None:
    """Returns in words where two passes differ, `None` if they do not.

    Args:
        trial: The model and its batch.
        first: A pass.
        second: Another pass.
        kept: Which examples are compared, `[batch]`.
        part: The row of `Trial.weights` for these examples.
        rows: The row of the first pass for each row of the second. By default,
            it is the same row.
    """
    paths = trial.paths
    places = kept if rows is None else kept[rows]
    for path, one, two in zip(paths, first.inputs, second.inputs, strict=True):
        if trial.differ(one, two, places, rows):
            return f"the inputs of layer {path!r}"
    # The losses are in the order of the batch.
    before, after = (trial.digests(each.losses) for each in (first, second))
    if trial.differ(before, after, kept):
        return "the loss of one"
    for place, path in enumerate(paths):
        one, two = (each.cotangents[place] for each in (first, second))
        if first.sums[place]:
            one, two = (each.sums[place][part] for each in (first, second))
        if trial.differ(one, two, places, rows):
            return f"the gradient at the output of {path!r}"
    return None
