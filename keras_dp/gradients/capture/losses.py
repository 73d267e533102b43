"""Computes the loss of each example as Keras's loss of a batch of one.

Keras reduces a loss over the batch, so that means, masks and sample weights
couple examples. Here the loss is evaluated on each example as a batch of one,
so that no loss can couple examples. Only the loss is vectorized over examples,
and the model is not.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.errors import GradientCheckError
from keras_dp.gradients.capture.mapped_examples import map_examples
from keras_dp.keras_internals import (
    losses_in,
    mask_of,
    part_trackers_of,
    replaced_attribute,
    set_mask,
)


class ExampleLosses(NamedTuple):
    """Losses of a batch, example by example.

    Attributes:
        total: The loss that is minimized, with loss weights, `[batch]`.
        parts: For a model with several losses, each of them without its loss
            weight, `[batch]`. For a model with one loss, no tensors.
    """

    total: tf.Tensor
    parts: list[tf.Tensor]


class TracedMaps:
    """Maps over examples, each traced once for all functions that call it.

    Vectorizing a loss is slow, so the self-check and the step share its trace.
    """

    def __init__(self) -> None:
        """Starts without any trace."""
        self._maps: dict[str, Callable[..., Any]] = {}

    def map(
        self,
        function: Callable[[list[tf.Tensor]], Any],
        rows: list[tf.Tensor],
        key: str,
    ) -> Any:
        """Returns the result of `map_examples`.

        Args:
            function: Maps a row of each tensor. It closes over no tensor.
            rows: The tensors, each `[batch, ...]`.
            key: The name of the function. Functions of the same name must
                compute the same, because the first one is used for all.
        """
        if key not in self._maps:

            def mapped(*leaves: tf.Tensor) -> Any:
                return map_examples(function, list(leaves))

            self._maps[key] = tf.function(mapped, autograph=False)
        return self._maps[key](*rows)


def example_losses(
    compiled_loss: Any,
    targets: Any,
    outputs: Any,
    sample_weight: Any,
    batch: int,
    *,
    loss_scale: float = 1.0,
    maps: TracedMaps | None = None,
) -> ExampleLosses:
    """Returns the losses of a batch, example by example.

    Args:
        compiled_loss: The loss that `keras.Model.compile` made, built.
        targets: A nest with leaves `[batch, ...]`.
        outputs: The outputs of the model, leaves `[batch, ...]`, with their
            Keras masks.
        sample_weight: A nest with leaves `[batch, ...]`, or `None`.
        batch: The number of examples.
        loss_scale: A factor of the losses while they are differentiated, so
            that half precision can hold their gradients. The returned losses
            and their gradients do not have it. It should be the factor by which
            the caller multiplies the losses afterwards.
        maps: Keeps the trace of the map over examples, for one `compiled_loss`.
            By default, the map is traced at every call.

    Returns:
        The losses. Their gradients with respect to `outputs` are defined.

    Raises:
        GradientCheckError: The loss reads weights. It is raised when the losses
            are differentiated.
        ValueError: The loss is not built, or the first axis of a leaf is not
            the batch.
    """
    if not compiled_loss.built:
        raise ValueError(
            "`compiled_loss` must be built. Call it on a batch of targets and "
            "outputs first."
        )
    structure = (targets, outputs, sample_weight)
    leaves = keras.tree.flatten(structure)
    structure = keras.tree.map_structure(lambda _: None, structure)
    leaves += [mask_of(leaf) for leaf in leaves]
    given = [leaf for leaf in leaves if leaf is not None]
    is_given = [leaf is not None for leaf in leaves]
    _check_batch(given, batch)

    def one_example(rows: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        remaining = iter(rows)
        filled = [next(remaining) if there else None for there in is_given]
        return _loss_of_one(compiled_loss, structure, filled)

    rows = [tf.convert_to_tensor(leaf) for leaf in given]
    own = {id(leaf) for leaf in keras.tree.flatten(outputs)}
    watched = [
        place
        for place, leaf in enumerate(given)
        if id(leaf) in own and rows[place].dtype.is_floating
    ]
    key = repr((structure, is_given, watched, loss_scale))

    def vectorized(function: Callable[..., Any], rows: list[tf.Tensor]) -> Any:
        if maps is None:
            return map_examples(function, rows)
        return maps.map(function, rows, key)

    total, parts = _differentiable(
        one_example, rows, watched, loss_scale, vectorized
    )
    return ExampleLosses(tf.reshape(total, [batch]), parts)


def _loss_of_one(
    compiled_loss: Any, structure: Any, rows: list[tf.Tensor | None]
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns the loss of a batch of one example, and its unweighted parts.

    The rows are the leaves of the nest of targets, outputs and weights for one
    example, then their Keras masks.
    """
    batches = [None if row is None else row[tf.newaxis] for row in rows]
    values = batches[: len(rows) // 2]
    for value, mask in zip(values, batches[len(values) :], strict=True):
        if value is not None and mask is not None:
            set_mask(value, mask)
    y_true, y_pred, weight = keras.tree.pack_sequence_as(structure, values)
    with _untracked(compiled_loss) as parts:
        total = compiled_loss(y_true, y_pred, weight)
    return tf.reduce_mean(total), list(map(tf.reduce_mean, parts))


def _differentiable(
    function: Callable[[list[tf.Tensor]], tuple[tf.Tensor, list[tf.Tensor]]],
    rows: list[tf.Tensor],
    watched: list[int],
    loss_scale: float,
    vectorized: Callable[[Callable[..., Any], list[tf.Tensor]], Any],
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Maps a function over examples, together with its gradients.

    Without it, XLA would compile the gradient of a vectorized map at every
    call, with the weights as constants. The function maps a row of each tensor
    to a total and its parts. The total is differentiated by the tensors at the
    places `watched`.
    """

    def with_gradients(row: list[tf.Tensor]) -> Any:
        inputs = [row[place] for place in watched]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(inputs)
            total, parts = function(row)
            scaled = total * tf.cast(loss_scale, total.dtype)
        gradients = tape.gradient(
            scaled, inputs, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return total, parts, gradients

    @tf.custom_gradient
    def mapped(*inputs: tf.Tensor) -> Any:
        leaves = list(rows)
        for place, tensor in zip(watched, inputs, strict=True):
            leaves[place] = tensor
        total, parts, gradients = vectorized(with_gradients, leaves)
        # Nobody asks for second derivatives, which loops may not have.
        gradients = [tf.stop_gradient(gradient) for gradient in gradients]

        def backward(
            upstream: tf.Tensor,
            *_: tf.Tensor,
            variables: Sequence[tf.Variable] | None = None,
        ) -> list[tf.Tensor]:
            if variables:
                raise _reads_weights(variables)
            share = tf.reshape(upstream, [-1]) / loss_scale
            return [_times(gradient, share) for gradient in gradients]

        return (total, *parts), backward

    total, *parts = mapped(*(rows[place] for place in watched))
    return total, parts


def _reads_weights(variables: Sequence[tf.Variable]) -> GradientCheckError:
    names = sorted(variable.name for variable in variables)
    return GradientCheckError(
        "The loss must be a function of targets and outputs alone. Received: "
        f"a loss that reads the weights {names!r}. Give a penalty of weights "
        "to their layer (kernel_regularizer=...), and return what else the "
        "loss needs as one more output of the model."
    )


def _times(gradient: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    along = [-1] + [1] * (gradient.shape.rank - 1)
    return gradient * tf.cast(tf.reshape(share, along), gradient.dtype)


class BatchLosses(NamedTuple):
    """Losses of a whole batch, as Keras computes them.

    Attributes:
        values: A scalar for each loss. If there are several, they are without
            loss weights.
        leaves_out: Whether a loss leaves out entries by a mask of its own, as
            it does for `ignore_class`.
        shapes: For the path to each output with a loss, the shape of the
            entries of the loss, `[batch, ...]`. Losses that do not say what
            their entries are have none.
    """

    values: list[tf.Tensor]
    leaves_out: bool
    shapes: dict[tuple[Any, ...], tf.TensorShape]


def batch_losses(compiled_loss: Any, targets: Any, outputs: Any) -> BatchLosses:
    """Returns each loss of a whole batch, as Keras computes it."""
    masked: list[bool] = []
    shapes: dict[tuple[Any, ...], tf.TensorShape] = {}

    def noting(
        path: tuple[Any, ...], original: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            values = original(*arguments, **options)
            masked.append(mask_of(values) is not None)
            shapes[path] = tf.convert_to_tensor(values).shape
            return values

        return call

    with contextlib.ExitStack() as stack:
        for path, loss in losses_in(compiled_loss):
            call = noting(path, loss.call)
            stack.enter_context(replaced_attribute(loss, "call", call))
        parts = stack.enter_context(_untracked(compiled_loss))
        total = compiled_loss(targets, outputs, None)
    values = list(map(tf.reduce_mean, parts or [total]))
    return BatchLosses(values, any(masked), shapes)


@contextlib.contextmanager
def summing(compiled_loss: Any) -> Iterator[None]:
    """Makes losses sums of their entries: no number of entries divides them."""
    with contextlib.ExitStack() as stack:
        for _, loss in losses_in(compiled_loss):
            stack.enter_context(replaced_attribute(loss, "reduction", "sum"))
        yield


def reduced_losses(loss: Any) -> Any:
    """Returns losses that answer one number where they were not reduced.

    The loss of an example is then the mean of its entries, as it is by default
    and in TensorFlow Privacy.

    Args:
        loss: The argument `loss` of `compile`.
    """

    def reduced(each: Any) -> Any:
        is_loss = isinstance(each, keras.losses.Loss)
        if not is_loss or each.reduction not in (None, "none"):
            return each
        each = copy.copy(each)
        each.reduction = "sum_over_batch_size"
        return each

    return keras.tree.map_structure(reduced, loss)


def _check_batch(leaves: list[Any], batch: int) -> None:
    for leaf in leaves:
        shape = tuple(leaf.shape)
        if not shape or shape[0] != batch:
            raise ValueError(
                "Targets, sample weights, masks and outputs of the model must "
                f"have the batch of {batch} examples as their first axis. "
                f"Received: shape={shape!r}. Move the examples to the first "
                "axis, and repeat what they share along it."
            )


class _PartRecorder:
    """Stands in for the metric that tracks one of several losses."""

    def __init__(self, parts: list[tf.Tensor]) -> None:
        self._parts = parts

    def update_state(self, value: tf.Tensor, sample_weight: Any = None) -> None:
        del sample_weight
        self._parts.append(value)


@contextlib.contextmanager
def _untracked(compiled_loss: Any) -> Iterator[list[tf.Tensor]]:
    """Collects the parts of a loss, in place of updating Keras's averages."""
    parts: list[tf.Tensor] = []
    trackers = part_trackers_of(compiled_loss)
    before = list(trackers)
    trackers[:] = [_PartRecorder(parts) for _ in before]
    try:
        yield parts
    finally:
        trackers[:] = before
