"""Gradients that are computed in chunks of examples, each time anew."""

from collections.abc import Callable

import tensorflow as tf
from typing_extensions import override

from keras_dp.gradients.records.records import (
    GradientRecords,
    grouped_axis,
    in_float,
    squared_sums,
    sum_under,
)


class RecomputedRecords(GradientRecords):
    """Gradients that are too large to be kept for all examples at once.

    Norms and weighted sums each loop over chunks of examples, and compute the
    gradients anew.
    """

    def __init__(
        self,
        compute: Callable[[tf.Tensor], tf.Tensor],
        indices: tf.Tensor,
        like: tf.Tensor,
        chunk: int,
        squares: tf.Tensor | None = None,
    ) -> None:
        """Stores how the gradients are computed.

        Args:
            compute: Maps indices `[n]` to the gradients `[n, *shape]` of these
                examples.
            indices: The indices of these records, `[batch]`.
            like: A tensor in the shape and the dtype of the variable.
            chunk: The number of examples that are computed at once.
            squares: The squared norms `[batch]`, if they are known.
        """
        self.compute, self.indices, self.like = compute, indices, like
        self.chunk, self.squares = chunk, squares

    @override
    def squared_norms(self) -> tf.Tensor:
        if self.squares is None:

            def squares(indices: tf.Tensor) -> tf.Tensor:
                return squared_sums(in_float(self.compute(indices)))

            dtype = in_float(self.like).dtype
            self.squares = in_chunks(squares, self.indices, self.chunk, dtype)
        return self.squares

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        total = tf.zeros_like(in_float(self.like))
        chunks, padded = _chunks(self.indices, self.chunk)
        weights = tf.pad(tf.cast(weights, total.dtype), [[0, padded]])
        weights = tf.reshape(weights, chunks.shape)

        def add(number: tf.Tensor, total: tf.Tensor) -> list[tf.Tensor]:
            gradients = in_float(self.compute(chunks[number]))
            return [number + 1, total + sum_under(weights[number], gradients)]

        _, total = tf.while_loop(
            lambda number, _: number < chunks.shape[0],
            add,
            [tf.constant(0), total],
            parallel_iterations=1,
        )
        return total

    @override
    def materialize(self) -> tf.Tensor:
        return in_float(self.compute(self.indices))

    @override
    def take(self, indices: tf.Tensor) -> "RecomputedRecords":
        squares = self.squares
        return RecomputedRecords(
            self.compute,
            tf.gather(self.indices, indices),
            self.like,
            self.chunk,
            None if squares is None else tf.gather(squares, indices),
        )

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "RecomputedRecords":
        groups = grouped_axis(self.indices, size)
        weights = grouped_axis(weights, size)

        def sum_of(group: tf.Tensor) -> tf.Tensor:
            records = RecomputedRecords(
                self.compute, groups[group], self.like, self.chunk
            )
            return records.weighted_sum(weights[group])

        dtype = in_float(self.like).dtype
        return RecomputedRecords(
            lambda own: tf.map_fn(
                sum_of,
                own,
                parallel_iterations=1,
                fn_output_signature=tf.TensorSpec(self.like.shape, dtype),
            ),
            tf.range(groups.shape[0]),
            self.like,
            self.chunk,
        )

    @override
    def joined(self, other: GradientRecords) -> "RecomputedRecords | None":
        if not isinstance(other, RecomputedRecords):
            return None
        one, two = self.compute, other.compute
        return RecomputedRecords(
            lambda indices: in_float(one(indices)) + in_float(two(indices)),
            self.indices,
            self.like,
            max(1, min(self.chunk, other.chunk) // 2),
        )


def in_chunks(
    function: Callable[[tf.Tensor], tf.Tensor | list[tf.Tensor]],
    indices: tf.Tensor,
    chunk: int,
    signature: tf.DType | list[tf.DType],
) -> tf.Tensor | list[tf.Tensor]:
    """Applies a function to all examples, chunk by chunk.

    Args:
        function: Maps indices `[n]` to a nest of tensors `[n, ...]`.
        indices: Shape `[batch]`.
        chunk: The largest number of examples at once.
        signature: The dtypes of the nest.

    Returns:
        The nest of tensors `[batch, ...]`.
    """
    chunks, _ = _chunks(indices, chunk)
    mapped = tf.map_fn(
        function,
        chunks,
        parallel_iterations=1,
        fn_output_signature=signature,
    )
    return tf.nest.map_structure(
        lambda found: tf.reshape(found, [-1, *found.shape[2:]])[
            : indices.shape[0]
        ],
        mapped,
    )


def _chunks(indices: tf.Tensor, chunk: int) -> tuple[tf.Tensor, int]:
    """Returns the indices `[chunks, n]`, and how many are repeated at the end.

    There are as few chunks as `n <= chunk` allows, all of one size.
    """
    batch = indices.shape[0]
    count = -(-batch // chunk)
    size = -(-batch // count)
    padded = count * size - batch
    last = tf.repeat(indices[-1:], padded)
    return tf.reshape(tf.concat([indices, last], 0), [count, size]), padded
