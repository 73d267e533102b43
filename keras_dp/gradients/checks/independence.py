"""Does what an example adds depend on other examples, or on its row?

An example may depend on the weights, on itself, and on random numbers. What a
layer draws may differ from row to row, as in `Dropout`.

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
from keras_dp.gradients.checks.culprit import differing_layer
from keras_dp.gradients.checks.trial import Trial
from keras_dp.gradients.engine import HookedPass
from keras_dp.gradients.layer_calls import (
    current_call,
    float_outputs,
    replaced_call,
)
from keras_dp.keras_internals import (
    layers_of,
    moved_draws,
    seed_generators_of,
    sublayers_of,
    takes_training,
)


def check_repeats(trial: Trial) -> bool:
    """Returns whether the model draws random numbers in training.

    Raises:
        GradientCheckError: It draws some that cannot be repeated.
    """

    def outputs() -> list[tf.Tensor]:
        return float_outputs(trial.engine.call(trial.inputs))

    def differ(one: list[tf.Tensor], two: list[tf.Tensor]) -> bool:
        return any(
            not np.allclose(a, b, rtol=1e-6, atol=1e-6, equal_nan=True)
            for a, b in zip(one, two, strict=True)
        )

    trial.restore()
    first, following = outputs(), outputs()
    if not differ(first, following):
        return False
    trial.restore()
    if differ(first, outputs()):
        raise GradientCheckError(
            "Random numbers that the model draws in training must come from a "
            "keras.random.SeedGenerator of the layer that uses them. Without "
            "one they cannot be repeated, and whether examples interact "
            "cannot be told."
        )
    return True


def check_independence(trial: Trial, first: HookedPass) -> None:
    """Exchanges some examples, and compares what the others add.

    Every example is kept in one pass of each pair, and exchanged in the other.
    The pass compares an example's loss, its inputs to the layers that own
    weights, and the cotangents of their outputs. These determine its gradient.

    Args:
        trial: The model and its batch.
        first: A pass over the batch as it is.

    Raises:
        GradientCheckError: Another example changed one of them.
    """
    for kept in _splits(trial.batch):
        copies = np.where(kept, np.arange(trial.batch), np.argmax(kept))
        changed = rows_of(trial.inputs, copies)
        place = _difference(trial, first, trial.hooked_pass(changed), kept)
        if place is not None:
            layer = differing_layer(trial, changed, kept)
            raise GradientCheckError(
                "Each example's loss and gradient must depend on that example "
                "only. Changing the other examples of a batch changed "
                f"{place}.{layer} Remove what makes examples interact (a "
                "statistic over axis 0, attention over the batch)."
            )


def check_rows(trial: Trial, *, is_random: bool) -> None:
    """Moves every example into the next row, and compares what it adds.

    Args:
        trial: The model and its batch.
        is_random: Whether rows have random numbers of their own in training.
            Then these are moved along with the examples. Where that does not
            make them equal, the model is compared as it is used without
            training, and its outputs also in training, but for the layers that
            draw.

    Raises:
        GradientCheckError: The row changed the result.
    """
    rows = np.roll(np.arange(trial.batch), 1)
    moved = rows_of(trial.inputs, rows)
    everywhere = np.ones(trial.batch, bool)
    if is_random and _moves_with_its_draws(trial, moved, rows):
        return
    training = not is_random
    first, second = (
        trial.hooked_pass(inputs, _squares, training=training)
        for inputs in (trial.inputs, moved)
    )
    place = _difference(trial, first, second, everywhere, rows)
    if place is not None:
        layer = differing_layer(
            trial, moved, everywhere, rows, training=training
        )
        raise _depends_on_row(place, layer)
    if not is_random:
        return
    with _without_draws(trial.engine.model):
        one, two = (trial.outputs(inputs) for inputs in (trial.inputs, moved))
        if trial.differ(one, two, everywhere, rows):
            layer = differing_layer(trial, moved, everywhere, rows)
            raise _depends_on_row("the outputs of the model", layer)


def _moves_with_its_draws(trial: Trial, moved: Any, rows: np.ndarray) -> bool:
    """Whether examples add the same where their random numbers move along."""
    first = trial.hooked_pass(trial.inputs, _squares)
    with moved_draws(rows.tolist()):
        second = trial.hooked_pass(moved, _squares)
    everywhere = np.ones(trial.batch, bool)
    return _difference(trial, first, second, everywhere, rows) is None


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


def _splits(batch: int) -> Iterator[np.ndarray]:
    """Yields which examples are kept: every second, and a random half."""
    parity = np.arange(batch) % 2 == 0
    half = parity[np.argsort(np.random.SeedSequence(0).generate_state(batch))]
    for kept in (parity, half) if batch > 2 else (parity,):
        yield from (kept, ~kept)


def _difference(
    trial: Trial,
    first: HookedPass,
    second: HookedPass,
    kept: np.ndarray,
    rows: np.ndarray | None = None,
) -> str | None:
    """Returns in words where two passes differ.

    Args:
        trial: The model and its batch.
        first: A pass.
        second: Another pass.
        kept: Which rows of the second pass are compared, `[batch]`.
        rows: Which row of the first pass each of them was; the same by default.
    """
    for one, two in zip(first.calls, second.calls, strict=True):
        given = (one.args, one.kwargs)
        if trial.differ(given, (two.args, two.kwargs), kept, rows):
            return f"the inputs of layer {one.hook.layer.path!r}"
    if trial.differ(first.losses, second.losses, kept, rows):
        return "the loss of one"
    weights = tf.random.stateless_normal([trial.batch], [0, 0], alg="philox")
    weights = tf.where(kept, weights, tf.zeros_like(weights))
    back = weights if rows is None else tf.gather(weights, np.argsort(rows))
    for place, call in enumerate(first.calls):
        before = _backward_values(trial, first, place, back)
        after = _backward_values(trial, second, place, weights)
        if trial.differ(before, after, kept, rows):
            return f"the gradient at the output of {call.hook.layer.path!r}"
    return None


def _backward_values(
    trial: Trial, ran: HookedPass, place: int, weights: tf.Tensor
) -> list[tf.Tensor]:
    """Returns what the backward pass left at a hook, to be compared.

    Cotangents of layers that are called in a way of their own are not arranged
    by rows: their weighted sums of gradients stand for them.
    """
    call, cotangents = ran.calls[place], ran.cotangents[place]
    if call.hook.observe is None:
        return cotangents
    records = trial.engine.records([call], [cotangents], trial.batch)
    sums = [record.weighted_sum(weights) for record in records]
    return [total[tf.newaxis] for total in sums]  # Not taken for rows.


def _squares(outputs: Any) -> tf.Tensor:
    """A loss of each row that knows no targets."""
    return tf.add_n(
        [
            tf.reduce_sum(
                tf.reshape(
                    tf.square(tf.cast(leaf, tf.float32)), [leaf.shape[0], -1]
                ),
                axis=1,
            )
            for leaf in keras.tree.flatten(outputs)
            if leaf.dtype.is_floating
        ]
    )
