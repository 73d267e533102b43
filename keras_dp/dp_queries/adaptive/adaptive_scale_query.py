"""Records scaled by earlier answers before they are clipped and noised."""

import dataclasses
import math
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp import _check, _nests
from keras_dp._override import override
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries import saving
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    Nest,
    QueryResult,
    check_structure,
    gaussian_variances,
)
from keras_dp.dp_queries.saving import as_floats, register
from keras_dp.dp_queries.wrapping_query import WrappingQuery

_LARGEST_RANGE = 1000.0  # The scale of a kernel is a product of up to six.


class AdaptiveScaleState(NamedTuple):
    """The state of an `AdaptiveScaleQuery`, all of it from released answers.

    `scales` are those of the next round: for each leaf of a record, in order, a
    vector of float64 for each axis. The scale of a coordinate is the product of
    its numbers. For a leaf without axes it is 1. `moments` are the average
    squares of answers less the noise, along each axis, in vectors of the same
    shapes. `noise` is the average variance of the noise on a coordinate,
    float64.
    """

    query: Nest
    scales: tuple[tuple[tf.Tensor, ...], ...]
    moments: tuple[tuple[tf.Tensor, ...], ...]
    noise: tf.Tensor
    rounds: tf.Tensor


class AdaptiveScaleParams(NamedTuple):
    """The public values of the query inside, and the scales of one round."""

    query: Nest
    scales: tuple[tuple[tf.Tensor, ...], ...]


@register
@dataclasses.dataclass(frozen=True, slots=True)
class AdaptiveScaleQuery(WrappingQuery):
    """Scales records by what earlier answers say, and then privatizes them.

    Each coordinate of a record is divided by a scale. The query inside clips
    the scaled records, sums them and adds noise, and each coordinate of its
    answer is multiplied by the scale again. So coordinates with large answers
    get more noise, and those with small answers less. A record with few large
    coordinates is clipped less.

    The scale of coordinate `[i, j, ...]` of a variable is a product: a number
    for the variable, one for i, one for j, and so on. (With two axes these are
    the row and column statistics of Adafactor.) So the gradient of a kernel,
    `sum_t a_t b_t^T`, is scaled by scaling the vectors `a_t` and `b_t`: its
    norms and sums are computed as before, and no gradient is built for it.

    Let v be the average over rounds of the squares of answers less the variance
    of their noise, along an axis of a variable, and n the variance of the noise
    averaged over all coordinates. The factor along this axis is
    `(max(v, 0) + floor * n)^(power / 2)`, relative to its mean square. Scales
    have the mean square 1 over all coordinates of a record: the answer has as
    much noise in total as that of the query inside, and scaled records are
    shorter. So a smaller clip suits. In the first rounds all scales are 1.

    Guarantee: the guarantee of `query` for the scaled records, which
    `mechanisms` returns. Scales depend on released answers only. They are fixed
    within a sample, and answers are multiplied after the noise. So a round
    costs what a round of `query` costs, for every adjacency relation. A record
    that is not finite after it was scaled counts as zero.

    Attributes:
        query: The query that bounds the scaled records, and answers with
            Gaussian noise of a known variance, such as a
            `GaussianAverageQuery`.
        record_specs: Nest of `tf.TensorSpec`s, or of anything with a shape and
            a dtype: one record. For the gradients of a model, the list
            `model.trainable_variables`.
        power: The scale is the estimated size of an answer to this power, in
            (0, 1]. 1 suits optimizers that divide by it, as Adam does; 1/2
            gives the least noise in total, which suits SGD.
        decay: The weight of earlier rounds in averages, in [0, 1).
        floor: The least square, in units of the mean variance of the noise,
            >= 0.
        first_rounds: The number of rounds in which all scales are 1, >= 1.
        scale_range: No factor differs from the mean along its axis by more
            than this, in [1, 1000].

    Raises:
        TypeError: The noise of `query` is not known, or not Gaussian. It is
            raised by `initial_global_state`, before the first round.

    Source: Ganesh, McMahan, Thakurta (2025), arXiv:2507.01129v1, "scale, then
    privatize". There scales are those of Adam, one for each coordinate, with
    the noise in the squares. Factors of the axes are those of Shazeer and Stern
    (2018), arXiv:1804.04235v1, section 3.

    >>> from keras_dp.dp_queries.gaussian.gaussian_sums import GaussianSumQuery
    >>> inner = GaussianSumQuery(l2_norm_clip=5.0, stddev=0.0)
    >>> query = AdaptiveScaleQuery(inner, tf.TensorSpec([2]), first_rounds=1)
    >>> state, record = query.initial_global_state(), tf.constant([6.0, 8.0])
    >>> for _ in range(2):
    ...     sample = query.accumulate_record(
    ...         query.derive_sample_params(state),
    ...         query.initial_sample_state(record), record)
    ...     value, state, _ = query.get_noised_result(sample, state)
    ...     print(value.numpy().round(2), state.scales[0][0].numpy())
    [3. 4.] [0.84852814 1.13137085]
    [3. 4.] [0.84852814 1.13137085]
    """

    query: DPQuery
    record_specs: Nest
    power: float = 1.0
    decay: float = 0.9
    floor: float = 1.0
    first_rounds: int = 10
    scale_range: float = 10.0

    def __post_init__(self) -> None:
        _check.kind(DPQuery, query=self.query)
        specs = saving.frozen_specs(self.record_specs)
        object.__setattr__(self, "record_specs", specs)
        _check.integer_at_least(1, first_rounds=self.first_rounds)
        _check.share("(0, 1]", power=self.power)
        _check.share("[0, 1)", decay=self.decay)
        _check.finite_non_negative(floor=self.floor)
        _check.within(1, _LARGEST_RANGE, scale_range=self.scale_range)
        as_floats(self, "power", "decay", "floor", "scale_range")

    @override
    def inner_state(self, global_state: AdaptiveScaleState) -> Nest:
        return global_state.query

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        specs = keras.tree.flatten(_nests.thawed(self.record_specs))
        return [tuple(spec.shape) for spec in specs]

    @property
    def _sizes(self) -> list[float]:
        """The number of coordinates of each leaf; 0 of one without axes."""
        return [
            float(math.prod(shape)) if shape else 0.0 for shape in self._shapes
        ]

    @override
    def initial_global_state(
        self, seed: int | None = None
    ) -> AdaptiveScaleState:
        state = self.query.initial_global_state(seed)
        self._noise_variances(state, _nests.thawed(self.record_specs))
        return AdaptiveScaleState(
            query=state,
            scales=tuple(
                tuple(tf.ones([size], tf.float64) for size in shape)
                for shape in self._shapes
            ),
            moments=tuple(
                tuple(tf.zeros([size], tf.float64) for size in shape)
                for shape in self._shapes
            ),
            noise=tf.zeros([], tf.float64),
            rounds=tf.zeros([], tf.int64),
        )

    def _noise_variances(self, state: Nest, value: Nest) -> list[tf.Tensor]:
        found = gaussian_variances(self.query, state, value)
        if found is None:
            raise TypeError(
                "`query` must have Gaussian noise of one known variance in "
                "each leaf, to tell answers from noise. Received: "
                f"query={self.query!r}. Take a GaussianAverageQuery inside, "
                "and correct answers outside."
            )
        return found

    @override
    def derive_sample_params(
        self, global_state: AdaptiveScaleState
    ) -> AdaptiveScaleParams:
        return AdaptiveScaleParams(
            self.query.derive_sample_params(global_state.query),
            global_state.scales,
        )

    def _following(
        self, state: AdaptiveScaleState
    ) -> tuple[tuple[tf.Tensor, ...], ...]:
        least = self.floor * state.noise
        factors, levels = [], []
        for moments in state.moments:
            squares = [tf.maximum(each, 0.0) + least for each in moments]
            means = [tf.reduce_mean(each) for each in squares]
            factors.append(list(map(self._factor, squares, means)))
            overall = tf.reduce_mean(moments[0] if moments else least * 0)
            levels.append(tf.maximum(overall, 0.0) + least)
        typical = _mean(levels, self._sizes)
        levels = [self._factor(level, typical) for level in levels]
        mean_square = _mean(
            [
                tf.square(level) * _mean_square(own)
                for level, own in zip(levels, factors, strict=True)
            ],
            self._sizes,
        )
        begun = state.rounds >= self.first_rounds
        scales = []
        for level, own in zip(levels, factors, strict=True):
            if own:
                own[0] *= level / tf.sqrt(mean_square)
            scales.append(tuple(tf.where(begun, each, 1.0) for each in own))
        return tuple(scales)

    def _factor(self, square: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
        """Returns the size of answers relative to the mean, to the power."""
        ratio = tf.where(mean > 0, square / tf.where(mean > 0, mean, 1.0), 1.0)
        size = tf.sqrt(ratio)
        if self.power != 1:
            size = tf.pow(size, self.power)
        least, most = 1 / self.scale_range, self.scale_range
        return tf.clip_by_value(size, least, most)

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        saving.check_fits(template, self.record_specs)
        return self.query.initial_sample_state(template)

    @override
    def accumulate_records(
        self,
        params: AdaptiveScaleParams,
        sample_state: Nest,
        records: Nest,
        mask: tf.Tensor | None = None,
    ) -> Nest:
        check_structure(_nests.thawed(self.record_specs), records)
        inverse = [[1 / each for each in own] for own in params.scales]
        scaled = _times(records, inverse)
        return self.query.accumulate_records(
            params.query, sample_state, scaled, mask
        )

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: AdaptiveScaleState
    ) -> QueryResult:
        result = self.query.get_noised_result(sample_state, global_state.query)
        scales = global_state.scales
        value = _times(result.value, scales)
        variances = self._noise_variances(global_state.query, result.value)
        squares = [tf.square(leaf) for leaf in keras.tree.flatten(value)]
        moments = tuple(
            tuple(
                self._averaged(before, _square_along(axis, leaf, own, variance))
                for axis, before in enumerate(old)
            )
            for old, leaf, own, variance in zip(
                global_state.moments, squares, scales, variances, strict=True
            )
        )
        state = AdaptiveScaleState(
            query=result.global_state,
            scales=scales,
            moments=moments,
            noise=self._averaged(
                global_state.noise, _mean(variances, self._sizes)
            ),
            rounds=global_state.rounds + 1,
        )
        return result._replace(
            value=value,
            global_state=state._replace(scales=self._following(state)),
        )

    def _averaged(self, before: tf.Tensor, now: tf.Tensor) -> tf.Tensor:
        return self.decay * before + (1 - self.decay) * now


def _times(records: Nest, factors: Any) -> Nest:
    """Returns records, or one answer, with each leaf times its factors."""
    leaves = [
        records_lib.scaled(leaf, own)
        for leaf, own in zip(keras.tree.flatten(records), factors, strict=True)
    ]
    return keras.tree.pack_sequence_as(records, leaves)


def _square_along(
    axis: int, squares: tf.Tensor, scales: Any, variance: tf.Tensor
) -> tf.Tensor:
    """Returns the mean square along an axis, less that of the noise.

    The answer in `squares` is multiplied by the scales already. The variance is
    in the unit of the query inside.
    """
    others = [a for a in range(squares.shape.rank) if a != axis]
    mean = tf.cast(tf.reduce_mean(squares, axis=others), tf.float64)
    noise = tf.square(scales[axis]) * variance
    noise *= _mean_square([scales[other] for other in others])
    return mean - noise


def _mean(values: list[tf.Tensor], sizes: list[float]) -> tf.Tensor:
    """Returns the mean over all coordinates of a value of each leaf."""
    total = tf.add_n(
        [size * value for size, value in zip(sizes, values, strict=True)]
    )
    return total / max(1.0, sum(sizes))


def _mean_square(factors: list[tf.Tensor]) -> tf.Tensor:
    """Returns the mean square of the products of one entry of each vector."""
    means = [tf.reduce_mean(tf.square(factor)) for factor in factors]
    return tf.reduce_prod(tf.stack(means)) if means else tf.ones([], tf.float64)
