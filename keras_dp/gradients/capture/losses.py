"""The loss of each example, as Keras computes that of a batch of one.

Keras reduces a loss over the batch: means, masks and sample weights couple
examples. Evaluated on batches of one, vectorized over examples and over the
loss only, nothing is coupled, whatever the loss does.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.errors import GradientCheckError
from keras_dp.keras_internals import mask_of, part_trackers_of, set_mask


class ExampleLosses(NamedTuple):
    """Losses of a batch, example by example.

    Attributes:
        total: The minimized loss, loss weights included, `[batch]`.
        parts: Each loss of a model with several losses, without loss weights,
            `[batch]`. Empty if there is a single loss.
    """

    total: tf.Tensor
    parts: list[tf.Tensor]


class TracedMaps:
    """Maps over examples, each traced once for all functions that call it.

    Vectorizing a loss takes a quarter of a second. The self-check and the step
    share the trace.
    """

    def __init__(self) -> None:
        """Starts with nothing traced."""
        self._maps: dict[str, Callable[..., Any]] = {}

    def map(
        self,
        function: Callable[[list[tf.Tensor]], Any],
        rows: list[tf.Tensor],
        key: str,
    ) -> Any:
        """Returns what `tf.vectorized_map` returns.

        Args:
            function: Maps a row of each tensor; it closes over no tensor.
            rows: The tensors, `[batch, ...]`.
            key: A key that is equal for equal functions.
        """
        if key not in self._maps:

            def mapped(*leaves: tf.Tensor) -> Any:
                return tf.vectorized_map(function, list(leaves))

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
        targets: Nest with leaves `[batch, ...]`.
        outputs: Outputs of the model, leaves `[batch, ...]`, with their
            Keras masks.
        sample_weight: Nest with leaves `[batch, ...]`, or `None`.
        batch: Number of examples.
        loss_scale: The factor of the losses while they are differentiated.
            Without it half precision could not hold their gradients.
        maps: Keeps the trace of the map over examples, for one `compiled_loss`.
            By default it is traced anew.

    Raises:
        ValueError: The loss is not built, or a leaf does not have the batch
            as its first axis.
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
            return tf.vectorized_map(function, rows)
        return maps.map(function, rows, key)

    total, parts = _differentiable(
        one_example, rows, watched, loss_scale, vectorized
    )
    return ExampleLosses(tf.reshape(total, [batch]), parts)


def _loss_of_one(
    compiled_loss: Any, structure: Any, rows: list[tf.Tensor | None]
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns the loss of one example as a batch, and its unweighted parts.

    Args:
        compiled_loss: As in `example_losses`.
        structure: Nest of targets, outputs and weights, or of as many leaves.
        rows: The leaves of the nest for this example, then their Keras masks.
    """
    batches = [None if row is None else row[tf.newaxis] for row in rows]
    values = batches[: len(rows) // 2]
    for value, mask in zip(values, batches[len(values) :], strict=True):
        if value is not None and mask is not None:
            set_mask(value, mask)
    y_true, y_pred, weight = keras.tree.pack_sequence_as(structure, values)
    with _untracked(compiled_loss) as parts:
        total = compiled_loss(y_true, y_pred, weight)
    return total, parts


def _differentiable(
    function: Callable[[list[tf.Tensor]], tuple[tf.Tensor, list[tf.Tensor]]],
    rows: list[tf.Tensor],
    watched: list[int],
    loss_scale: float,
    vectorized: Callable[[Callable[..., Any], list[tf.Tensor]], Any],
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Maps a function over examples, and its gradients with it.

    XLA would compile the gradient of a vectorized map anew at every call, with
    the weights as constants.

    Args:
        function: Maps a row of each tensor to a total and its parts.
        rows: The tensors, `[batch, ...]`.
        watched: Places of the tensors that the total is differentiated by.
        loss_scale: See `example_losses`.
        vectorized: Maps a function over the rows of tensors.
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


def batch_losses(compiled_loss: Any, targets: Any, outputs: Any) -> list[Any]:
    """Returns each loss of a whole batch, as Keras computes it, unweighted."""
    with _untracked(compiled_loss) as parts:
        total = compiled_loss(targets, outputs, None)
    return parts or [total]


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
    """Makes the compiled loss tell its parts instead of averaging them."""
    parts: list[tf.Tensor] = []
    trackers = part_trackers_of(compiled_loss)
    before = list(trackers)
    trackers[:] = [_PartRecorder(parts) for _ in before]
    try:
        yield parts
    finally:
        trackers[:] = before
