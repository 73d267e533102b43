"""Gradients of the kernels of convolutions, in blocks or standardized."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_dp._override import override
from keras_dp._rounding import Proven, joint
from keras_dp.gradients.records.outer_product_records import (
    OuterProductRecords,
)
from keras_dp.gradients.records.proven_bounds import of_built
from keras_dp.gradients.records.records import (
    GradientRecords,
    group_sums,
    outer_product,
    summed,
    taken,
)
from keras_dp.gradients.records.reductions import (
    at_least,
    squared_sums,
    sum_under,
    unit_of,
)


class KernelBlock(NamedTuple):
    """Some rows of taps of the gradients of a kernel.

    A row of taps has one index along the first spatial axis of the kernel.
    `products` are `[batch, lefts * columns * channels, rights * filters]`.
    `rows[i][j]` is the row of the kernel of left `i` and right `j`.
    """

    products: tf.Tensor
    rows: tuple[tuple[int, ...], ...]


class SplitKernelRecords(GradientRecords):
    """Gradients of a kernel `[*taps, channels, filters]`, built in blocks.

    Together the blocks have each row of taps once.
    """

    def __init__(
        self, blocks: list[KernelBlock], shape: tuple[int, ...]
    ) -> None:
        self.blocks, self.shape = blocks, shape

    @override
    def joined(self, other: GradientRecords) -> "SplitKernelRecords | None":
        if not isinstance(other, SplitKernelRecords) or (
            [block.rows for block in other.blocks]
            != [block.rows for block in self.blocks]
        ):
            return None
        return self._with(
            [
                one.products + two.products
                for one, two in zip(self.blocks, other.blocks, strict=True)
            ]
        )

    @override
    def squared_norms(self) -> tf.Tensor:
        return tf.add_n([squared_sums(block.products) for block in self.blocks])

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return self._arranged(
            [sum_under(weights, block.products) for block in self.blocks]
        )

    @override
    def proven(self) -> Proven:
        each = [of_built(block.products) for block in self.blocks]
        squares, error, absolute = joint(each)
        return Proven(
            squares,
            each[0].blocks,
            error,
            absolute,
            lambda weights: self._arranged([own.sums(weights) for own in each]),
        )

    @override
    def materialize(self, indices: tf.Tensor | None = None) -> tf.Tensor:
        return self._arranged(
            [taken(block.products, indices) for block in self.blocks]
        )

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "SplitKernelRecords":
        return self._with(
            [group_sums(block.products, size, weights) for block in self.blocks]
        )

    @override
    def scaled(self, factors: Sequence[tf.Tensor]) -> "SplitKernelRecords":
        rows, *columns, filters = factors
        dtype = self.blocks[0].products.dtype
        rows, filters = tf.cast(rows, dtype), tf.cast(filters, dtype)
        width = tf.reshape(outer_product(columns, dtype), [-1])

        def scaled(block: KernelBlock) -> tf.Tensor:
            own = tf.gather(rows, block.rows)  # Shape [lefts, rights].
            scale = tf.einsum("ij,w,f->iwjf", own, width, filters)
            scale = tf.reshape(scale, block.products.shape[1:])
            return block.products * scale

        return self._with([scaled(block) for block in self.blocks])

    def _with(self, products: list[tf.Tensor]) -> "SplitKernelRecords":
        blocks = zip(products, self.blocks, strict=True)
        return SplitKernelRecords(
            [KernelBlock(own, block.rows) for own, block in blocks], self.shape
        )

    def _arranged(self, blocks: list[tf.Tensor]) -> tf.Tensor:
        """Returns products of all blocks as a kernel, `[..., *shape]`."""
        width = math.prod(self.shape[1:-1])
        by_row: dict[int, tf.Tensor] = {}
        for products, (_, own) in zip(blocks, self.blocks, strict=True):
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


# Where the map shortens a gradient to less than 1/16, its norm is too large:
# the sum is rounded by as much as before it is mapped.
_LEAST_SQUARE = 2.0**-8
# The rounding of the sums over a filter, in units of rounding.
_MARGIN = 64


class StandardizedRecords(GradientRecords):
    """Gradients of a kernel, from those of the kernel that was convolved.

    Let `c` be a filter less its mean, and `s = 1 / sqrt(|c|^2 + e)`. The filter
    that is convolved is `v = s c`. If `g` is the gradient with respect to it,
    that with respect to the filter is

        s (g - mean(g) - (v . g) v).

    This map is linear and the same for all examples. So a weighted sum is the
    map of a weighted sum. The squared norm is

        s^2 (|g|^2 - |mean(g)|^2 - (2 - |v|^2) (v . g)^2).

    Where the gradients are built, all of it is computed, with a margin for
    rounding. Else the inner records must be orthogonal to constants, and their
    norms are returned, which are upper bounds: they lack the last term.
    """

    def __init__(self, inner: GradientRecords, plain: tf.Tensor) -> None:
        """Stores the records.

        The `inner` gradients are those with respect to the filters that are
        convolved, multiplied by `s` of their filter. These filters are `plain`,
        `[*taps, channels, filters]`.
        """
        self.inner = inner
        self.plain = tf.reshape(plain, [-1, plain.shape[-1]])

    @override
    def squared_norms(self) -> tf.Tensor:
        inner = self.inner
        squares = inner.squared_norms()
        if isinstance(inner, OuterProductRecords) and not inner.instantiates:
            return squares
        built = tf.reshape(
            inner.materialize(), [squares.shape[0], *self.plain.shape]
        )
        mean = tf.reduce_mean(built, axis=1)
        along = tf.reduce_sum(built * self.plain, axis=1)
        lengths = tf.reduce_sum(tf.square(self.plain), axis=0)
        lost = self.plain.shape[0] * tf.square(mean)
        lost += (2 - lengths) * tf.square(along)
        norms = squares - tf.reduce_sum(lost, axis=1)
        margin = _MARGIN * unit_of(squares.dtype)
        return at_least(norms, _LEAST_SQUARE * squares) + margin * squares

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        total = self.inner.weighted_sum(weights)
        return self._mapped(total[tf.newaxis])[0]

    @override
    def materialize(self, indices: tf.Tensor | None = None) -> tf.Tensor:
        return self._mapped(self.inner.materialize(indices))

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "StandardizedRecords":
        inner = self.inner.grouped(size, weights)
        return StandardizedRecords(inner, self.plain)

    @override
    def joined(self, other: GradientRecords) -> "StandardizedRecords | None":
        if not isinstance(other, StandardizedRecords):
            return None
        inner = summed([self.inner, other.inner])
        return StandardizedRecords(inner, self.plain)

    def _mapped(self, gradients: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(gradients, [gradients.shape[0], *self.plain.shape])
        along = tf.reduce_sum(rows * self.plain, axis=1)
        rows -= tf.reduce_mean(rows, axis=1, keepdims=True)
        rows -= along[:, tf.newaxis] * self.plain
        return tf.reshape(rows, gradients.shape)
