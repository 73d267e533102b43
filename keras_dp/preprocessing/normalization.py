"""Means and variances of features, for `keras.layers.Normalization`."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_dp import _check
from keras_dp._override import override
from keras_dp.ledger import GaussianSum, SumQueryEvent
from keras_dp.preprocessing.columns import (
    ColumnSchema,
    Floats,
    check_numbers,
    checked_range,
    exact_sum,
    number_chunks,
)
from keras_dp.preprocessing.release import Adapter, noised

# A feature `u` in [-1, 1] contributes `u` and `_WEIGHT (u^2 - _CENTRE)`.
_WEIGHT = math.sqrt(2)
_CENTRE = 0.75
# The squared L2 norm of both is at most this; see `Normalization`.
_SQUARE_BOUND = 9 / 8
# The rounding of means over up to 2^28 entries changes norms by less.
_ROUNDING = 1 + 2.0**-20
# The lower limit of standard deviations, as a share of half the range.
_LEAST_STDDEV = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Normalization(Adapter):
    """Adapts a `keras.layers.Normalization` to noised means and variances.

    Each feature is mapped from its public range to `u` in [-1, 1] and clipped.
    If a record has several values of a feature, as an image has of a channel,
    `u` and `u^2` are averages over the record. A record contributes
    `u` and `sqrt(2) (u^2 - 3/4)` for each of its d features. Without a public
    `denominator`, it also contributes `d^(1/4)`, which counts the records.

    Guarantee: for all values, a record's vector has an L2 norm of at most
    `sqrt(9/8 d + sqrt(d))`, or `sqrt(9/8 d)` with a `denominator`. Proof: let
    t in [0, 1] be the average of `u^2`. The square of the average of `u` is at
    most t. The function `t + 2 (t - 3/4)^2` is convex, so that it is at most
    9/8, its value at both ends. NaN counts as the centre of the range. Vectors
    are divided by the bound and rounded towards zero to a grid before they are
    summed. The event therefore has bound 1 and noise of `noise_multiplier`.

    Standard deviations are at least 1 % of half the range.

    Weights: alone, `u` has bound 1 for a feature, and `u^2 - 1/2` has bound
    1/2. Together, with the weight w on the second, they have the bound
    `(w + 1/w) / 2` at the best centre. At w = sqrt(2) the sum of their squared
    errors is least, and means have 6 % more noise than alone. The weight of the
    count makes this sum, at the worst means and variances, least to within a
    percent.

    Attributes:
        bounds: The range (low, high) of every feature, in the unit of the data.
            Each end is a number, or a sequence with one number for each feature
            along the last kept axis. Do not choose it by looking at the data.
        noise_multiplier: The standard deviation of the noise, divided by the
            bound on one record, > 0.
        axis: As in the Keras layer: the axes that have a mean and a variance
            for each index. `None` is one mean and variance for all values.
            Axis 0, the records, is refused.
        denominator: The number of records, if it is public. An error of 1 %
            changes variances by up to 2 % of the squared half range. `None`
            divides by a noised count, which adds the error of the count. It
            also needs 4 % more noise with a hundred features, 37 % with one.

    Source: Dwork and Roth (2014), "The Algorithmic Foundations of Differential
    Privacy", Theorem A.1, for the mechanism. The weights are derived here.

    >>> from keras_dp.ledger import PrivacyLedger
    >>> ages = np.random.default_rng(1).uniform(20, 60, 100_000)
    >>> ledger = PrivacyLedger.in_memory(dataset="people")
    >>> adapter = Normalization((0, 100), noise_multiplier=10.0)
    >>> layer = adapter.adapt(ages, ledger)
    >>> abs(float(layer.input_mean[0]) - 40) < 0.5
    True
    >>> ledger.rounds[0].round == adapter.planned_round()
    True
    """

    bounds: tuple[float | Sequence[float], float | Sequence[float]]
    noise_multiplier: float
    axis: int | Sequence[int] | None = -1
    denominator: float | None = None

    def __post_init__(self) -> None:
        _check.finite_positive(noise_multiplier=self.noise_multiplier)
        if self.denominator is not None:
            _check.finite_positive(denominator=self.denominator)
        object.__setattr__(self, "bounds", checked_range(self.bounds))
        axes = self.axis
        if axes is not None and not isinstance(axes, int):
            axes = tuple(axes)
            object.__setattr__(self, "axis", axes)
        if axes == 0 or (isinstance(axes, tuple) and 0 in axes):
            raise ValueError(
                "`axis` must not hold 0, the axis of the records. Received: "
                f"axis={self.axis!r}. Each record would have a mean of its "
                "own. Name axes of features, such as -1."
            )

    @override
    def events(self) -> tuple[SumQueryEvent, ...]:
        name = "preprocessing/normalization"
        return (GaussianSum(name, 1.0, self.noise_multiplier),)

    @override
    def check_schema(self, schema: ColumnSchema) -> None:
        check_numbers(schema)
        shape = schema.features
        kept = [shape[axis - 1] for axis in self._kept_axes(len(shape) + 1)]
        known = tuple(size for size in kept if size is not None)
        if len(known) == len(kept):
            self._centre_and_half(known)

    def bounded_sum(self, data: Any) -> tuple[Floats, tuple[int, ...]]:
        """Returns the sum of all vectors, without noise, and a mean's shape.

        This method alone bounds the records, so that the bound can be tested.
        """
        chunks = number_chunks(data)
        first = next(chunks)
        kept = self._kept_axes(first.ndim)
        shape = tuple(first.shape[axis] for axis in kept)
        centre, half = self._centre_and_half(shape)
        contributions = (
            self._contributions(chunk, kept, centre, half)
            for chunk in itertools.chain([first], chunks)
        )
        return exact_sum(contributions), shape

    @override
    def noised_layer(self, data: Any) -> keras.layers.Normalization:
        sums, shape = self.bounded_sum(data)
        sums = noised(sums, self.noise_multiplier)
        mean, variance = self._moments(sums, math.prod(shape))
        centre, half = self._centre_and_half(shape)
        return keras.layers.Normalization(
            axis=self.axis,
            mean=(centre + half * mean.reshape(shape)).astype(np.float32),
            variance=(half**2 * variance.reshape(shape)).astype(np.float32),
        )

    def _centre_and_half(self, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
        low, high = (_for_features(bound, shape) for bound in self.bounds)
        return low / 2 + high / 2, high / 2 - low / 2

    def _bound(self, features: int) -> float:
        count = 0.0 if self.denominator is not None else math.sqrt(features)
        return math.sqrt(_SQUARE_BOUND * features + count) * _ROUNDING

    def _contributions(
        self, chunk: Floats, kept: tuple[int, ...], centre: Any, half: Any
    ) -> Floats:
        """Returns each record's vector over its bound, `[chunk, size]`."""
        others = tuple(i for i in range(1, chunk.ndim) if i not in kept)
        wide = [
            1 if i in others else chunk.shape[i] for i in range(1, chunk.ndim)
        ]
        with np.errstate(all="ignore"):
            u = (chunk - centre.reshape(wide)) / half.reshape(wide)
            u = np.clip(np.where(np.isnan(u), 0.0, u), -1.0, 1.0)
        size = math.prod(chunk.shape[i] for i in kept)
        means = np.mean(u, axis=others).reshape(len(chunk), size)
        squares = np.mean(u * u, axis=others).reshape(len(chunk), size)
        parts = [means, _WEIGHT * (squares - _CENTRE)]
        if self.denominator is None:
            parts.append(np.full((len(chunk), 1), size**0.25))
        return np.concatenate(parts, axis=1) / self._bound(size)

    def _moments(self, sums: Floats, features: int) -> tuple[Floats, Floats]:
        """Returns the mean and the variance of each `u`."""
        sums = sums * self._bound(features)
        count = self.denominator
        if count is None:
            count = max(1.0, float(sums[-1]) / features**0.25)
        mean = np.clip(sums[:features] / count, -1.0, 1.0)
        square = sums[features : 2 * features] / (_WEIGHT * count) + _CENTRE
        variance = np.clip(square, 0.0, 1.0) - mean**2
        return mean, np.maximum(variance, _LEAST_STDDEV**2)

    def _kept_axes(self, ndim: int) -> tuple[int, ...]:
        """Returns the axes of features, ascending; see Keras."""
        if self.axis is None:
            return ()
        axes = (self.axis,) if isinstance(self.axis, int) else self.axis
        kept = tuple(sorted(a if a >= 0 else a + ndim for a in axes))
        if any(not 0 < each < ndim for each in kept):
            raise ValueError(
                "`axis` must name axes of the data other than the first. "
                f"Received: axis={self.axis!r}, for data of {ndim} axes. Use "
                "the default, -1, for the last axis."
            )
        return kept


def _for_features(bound: Any, shape: tuple[int, ...]) -> Floats:
    values = np.asarray(bound, np.float64)
    if values.ndim and (not shape or values.shape[0] not in (1, shape[-1])):
        raise ValueError(
            "`bounds` must have one number for each feature. Received: "
            f"{values.shape[0]} numbers, for features of shape {shape}. Give "
            "a single number if all features have the same range."
        )
    return np.broadcast_to(values, shape)
