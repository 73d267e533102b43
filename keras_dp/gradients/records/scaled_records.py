"""Gradients of losses that were multiplied by a constant."""

import tensorflow as tf
from typing_extensions import override

from keras_dp.gradients.records.records import GradientRecords, in_float


class ScaledRecords(GradientRecords):
    """Records times a power of two, which rounds nothing in float32.

    Half precision cannot hold small gradients; those of a loss times a
    constant it can. They are divided by it here, in float32, before norms are
    taken.
    """

    def __init__(self, inner: GradientRecords, factor: float) -> None:
        self.inner, self.factor = inner, factor

    @override
    def squared_norms(self) -> tf.Tensor:
        # Twice, because the square may be below what float32 holds.
        return in_float(self.inner.squared_norms()) * self.factor * self.factor

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return in_float(self.inner.weighted_sum(weights)) * self.factor

    @override
    def materialize(self) -> tf.Tensor:
        return in_float(self.inner.materialize()) * self.factor

    @override
    def take(self, indices: tf.Tensor) -> "ScaledRecords":
        return ScaledRecords(self.inner.take(indices), self.factor)

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> "ScaledRecords":
        return ScaledRecords(self.inner.grouped(size, weights), self.factor)
