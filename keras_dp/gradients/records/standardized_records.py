"""Gradients of kernels whose filters are standardized before they are used."""

import tensorflow as tf

from keras_dp._override import override
from keras_dp.gradients.records.norms import at_least, unit_of
from keras_dp.gradients.records.outer_product_records import (
    OuterProductRecords,
)
from keras_dp.gradients.records.records import GradientRecords, summed

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

        Args:
            inner: The gradients with respect to the filters that are convolved,
                multiplied by `s` of their filter.
            plain: These filters, `[*taps, channels, filters]`.
        """
        self.inner = inner
        self.shape = plain.shape
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
    def materialize(self) -> tf.Tensor:
        return self._mapped(self.inner.materialize())

    @override
    def take(self, indices: tf.Tensor) -> "StandardizedRecords":
        return self._with(self.inner.take(indices))

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "StandardizedRecords":
        return self._with(self.inner.grouped(size, weights))

    @override
    def joined(self, other: GradientRecords) -> "StandardizedRecords | None":
        if not isinstance(other, StandardizedRecords):
            return None
        return self._with(summed([self.inner, other.inner]))

    def _with(self, inner: GradientRecords) -> "StandardizedRecords":
        return StandardizedRecords(inner, tf.reshape(self.plain, self.shape))

    def _mapped(self, gradients: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(gradients, [gradients.shape[0], *self.plain.shape])
        along = tf.reduce_sum(rows * self.plain, axis=1)
        rows -= tf.reduce_mean(rows, axis=1, keepdims=True)
        rows -= along[:, tf.newaxis] * self.plain
        return tf.reshape(rows, gradients.shape)
