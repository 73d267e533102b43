"""A loop over steps that carries tensors along, which XLA can compile."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

Tensors = list[tf.Tensor]


def scan(
    step: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]],
    carried: Tensors,
    sequences: Tensors,
    like: Tensors,
    unroll: bool,
    *,
    reverse: bool,
) -> tuple[Tensors, Tensors]:
    """Maps `step` over the leading axis, and carries its first results along.

    Args:
        step: Maps the carried tensors, and one row of each sequence, to the
            next carried tensors and one row of each result.
        carried: The carried tensors before the first step.
        sequences: Tensors `[steps, ...]`. There is at least one.
        like: Tensors with the shapes and dtypes of one row of each result.
        unroll: Whether to unroll the loop.
        reverse: Whether to begin with the last row.

    Returns:
        The carried tensors after the last step, and the results `[steps, ...]`
        in the order of the sequences.
    """
    steps = sequences[0].shape[0]
    if unroll:
        return _unrolled(step, carried, sequences, reverse)
    arrays = [
        tf.TensorArray(
            each.dtype, size=steps, element_shape=each.shape[1:]
        ).unstack(each)
        for each in sequences
    ]
    results = tuple(
        tf.TensorArray(each.dtype, size=steps, element_shape=each.shape)
        for each in like
    )

    def body(
        count: tf.Tensor, carried: Any, results: Any
    ) -> tuple[tf.Tensor, Any, Any]:
        at = steps - 1 - count if reverse else count
        rows = [array.read(at) for array in arrays]
        carried, new = step(list(carried), rows)
        results = tuple(
            result.write(at, row)
            for result, row in zip(results, new, strict=True)
        )
        return count + 1, tuple(carried), results

    _, carried, results = tf.while_loop(
        lambda count, *_: count < steps,
        body,
        (tf.constant(0), tuple(carried), results),
        maximum_iterations=steps,
    )
    return list(carried), [result.stack() for result in results]


def _unrolled(
    step: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]],
    carried: Tensors,
    sequences: Tensors,
    reverse: bool,
) -> tuple[Tensors, Tensors]:
    rows = list(zip(*(tf.unstack(each) for each in sequences), strict=True))
    results = []
    for row in reversed(rows) if reverse else rows:
        carried, new = step(carried, list(row))
        results.append(new)
    if reverse:
        results.reverse()
    return carried, [tf.stack(each) for each in zip(*results, strict=True)]
