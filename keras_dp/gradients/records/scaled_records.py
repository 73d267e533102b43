"""Gradients of losses that were multiplied by a constant."""

from collections.abc import Sequence

import tensorflow as tf

from keras_dp._override import override
from keras_dp._rounding import Proven, over
from keras_dp.gradients.records.records import GradientRecords, in_float


class ScaledRecords(GradientRecords):
    """Gradients times a power of two.

    Half precision cannot hold small gradients, so the loss is multiplied by a
    constant before it is differentiated. Here norms and sums, which are float32
    or wider, are divided by it. A power of two adds no rounding error, unless a
    result is too small for float32.
    """

    def __init__(self, inner: GradientRecords, factor: float) -> None:
        self.inner, self.factor = inner, factor

    @override
    def squared_norms(self) -> tf.Tensor:
        # In two steps, because float32 may not hold the square of the factor.
        return in_float(self.inner.squared_norms()) * self.factor * self.factor

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return in_float(self.inner.weighted_sum(weights)) * self.factor

    @override
    def proven(self) -> Proven:
        return over(
            self.inner.proven(),
            1 / self.factor,
            lambda sums: tf.cast(sums, tf.float64),
        )

    @override
    def materialize(self) -> tf.Tensor:
        return in_float(self.inner.materialize()) * self.factor

    @override
    def take(self, indices: tf.Tensor) -> "ScaledRecords":
        return ScaledRecords(self.inner.take(indices), self.factor)

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "ScaledRecords":
        return ScaledRecords(self.inner.grouped(size, weights), self.factor)

    @override
    def scaled(self, factors: Sequence[tf.Tensor]) -> "ScaledRecords":
        return ScaledRecords(self.inner.scaled(factors), self.factor)
