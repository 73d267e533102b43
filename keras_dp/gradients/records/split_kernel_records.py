"""Gradients of the kernels of convolutions, in blocks of rows of taps."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_dp._override import override
from keras_dp._rounding import Proven, joint
from keras_dp.gradients.records.norms import squared_sums
from keras_dp.gradients.records.proven_bounds import of_built
from keras_dp.gradients.records.records import (
    GradientRecords,
    grouped_axis,
    outer_product,
)
from keras_dp.gradients.records.sums import sum_under, weighted


class Block(NamedTuple):
    """Some rows of taps of the gradients of a kernel.

    A row of taps has one index along the first spatial axis of the kernel.

    Attributes:
        products: `[batch, lefts * columns * channels, rights * filters]`.
        rows: `rows[i][j]` is the row of the kernel of left `i` and right `j`.
    """

    products: tf.Tensor
    rows: tuple[tuple[int, ...], ...]


class SplitKernelRecords(GradientRecords):
    """Gradients of a kernel, built in blocks.

    Attributes:
        blocks: The blocks. Together they have each row of taps once.
        shape: The shape of the kernel, `[*taps, channels, filters]`.
    """

    def __init__(self, blocks: list[Block], shape: tuple[int, ...]) -> None:
        self.blocks, self.shape = blocks, shape

    @override
    def joined(self, other: GradientRecords) -> "SplitKernelRecords | None":
        if not isinstance(other, SplitKernelRecords) or (
            [block.rows for block in other.blocks]
            != [block.rows for block in self.blocks]
        ):
            return None
        return SplitKernelRecords(
            [
                Block(one.products + two.products, one.rows)
                for one, two in zip(self.blocks, other.blocks, strict=True)
            ],
            self.shape,
        )

    @override
    def squared_norms(self) -> tf.Tensor:
        return tf.add_n([squared_sums(block.products) for block in self.blocks])

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return self._mapped(lambda rows: sum_under(weights, rows))._arranged()

    @override
    def proven(self) -> Proven:
        each = [of_built(block.products) for block in self.blocks]
        squares, error, absolute = joint(each)

        def sums(weights: tf.Tensor) -> tf.Tensor:
            blocks = [
                Block(own.sums(weights), block.rows)
                for own, block in zip(each, self.blocks, strict=True)
            ]
            return SplitKernelRecords(blocks, self.shape)._arranged()

        return Proven(squares, each[0].blocks, error, absolute, sums)

    @override
    def materialize(self) -> tf.Tensor:
        return self._arranged()

    @override
    def take(self, indices: tf.Tensor) -> "SplitKernelRecords":
        return self._mapped(lambda rows: tf.gather(rows, indices))

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "SplitKernelRecords":
        return self._mapped(
            lambda rows: tf.reduce_sum(
                grouped_axis(weighted(rows, weights), size), axis=1
            )
        )

    @override
    def scaled(self, factors: Sequence[tf.Tensor]) -> "SplitKernelRecords":
        rows, *columns, filters = factors
        dtype = self.blocks[0].products.dtype
        rows, filters = tf.cast(rows, dtype), tf.cast(filters, dtype)
        width = tf.reshape(outer_product(columns, dtype), [-1])

        def scaled(block: Block) -> Block:
            own = tf.gather(rows, block.rows)  # Shape [lefts, rights].
            scale = tf.einsum("ij,w,f->iwjf", own, width, filters)
            scale = tf.reshape(scale, block.products.shape[1:])
            return Block(block.products * scale, block.rows)

        return SplitKernelRecords(list(map(scaled, self.blocks)), self.shape)

    def _mapped(
        self, function: Callable[[tf.Tensor], tf.Tensor]
    ) -> "SplitKernelRecords":
        return SplitKernelRecords(
            [Block(function(b.products), b.rows) for b in self.blocks],
            self.shape,
        )

    def _arranged(self) -> tf.Tensor:
        """Returns the gradients in the shape of the kernel, `[..., *shape]`."""
        width = math.prod(self.shape[1:-1])
        by_row: dict[int, tf.Tensor] = {}
        for products, own in self.blocks:
            parts = tf.reshape(
                products,
                [
                    *products.shape[:-2],
                    len(own),
                    width,
                    len(own[0]),
                    self.shape[-1],
                ],
            )
            lefts = tf.unstack(parts, axis=-4)
            for rows, of_left in zip(own, lefts, strict=True):
                rights = tf.unstack(of_left, axis=-2)
                by_row.update(zip(rows, rights, strict=True))
        kernel = tf.stack([by_row[row] for row in sorted(by_row)], axis=-3)
        return tf.reshape(kernel, [*kernel.shape[:-3], *self.shape])
