"""Sums of integer records with discrete Gaussian noise."""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from keras_dp import _check, ledger
from keras_dp._override import override
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import (
    Nest,
    QueryResult,
    zeros_like_record,
)
from keras_dp.dp_queries.saving import as_floats, register
from keras_dp.dp_queries.summing_query import SummingQuery
from keras_dp.noise import discrete_gaussian, seeds

# For a smaller scale, all noise is 0 except with probability exp(-5e11).
_SMALLEST_SCALE = 1e-6
# Integers up to it, and their sums, are exact in float64.
_LARGEST_EXACT = 2.0**53
_HALF_ULP = 2.0**-53


class DiscreteGaussianState(NamedTuple):
    """The state of a `DiscreteGaussianSumQuery`.

    Attributes:
        seed: See `seeds.fresh`. Never saved.
    """

    seed: tf.Tensor


class DiscreteGaussianEvent(NamedTuple):
    """The numbers of one release, as float64 scalar tensors.

    Attributes:
        l2_norm_bound: The clip of the records.
        noise_scale: The `scale` of the noise.
    """

    l2_norm_bound: tf.Tensor
    noise_scale: tf.Tensor


@register
@dataclasses.dataclass(frozen=True, slots=True)
class DiscreteGaussianSumQuery(SummingQuery):
    """Sums integer records of bounded norm, and adds discrete Gaussian noise.

    Answers are integers. So the low bits of a float, which rounding leaves in a
    noised sum, cannot tell the noise from the sum. A record whose norm is above
    the bound is scaled down to the bound, and its coordinates are truncated
    towards zero. It is not refused, because an error would depend on the data.

    Guarantee: adding, removing or zeroing out one record moves the sum before
    noise by at most `l2_norm_clip` in joint L2 norm, and replacing one by at
    most twice that. Sums of integers are exact, and a norm is compared with the
    bound as a correctly rounded float64; so it exceeds the bound by less than a
    relative 1.2e-16. A sum that does not fit its dtype wraps around, before or
    after the noise alike, which reveals nothing. The probabilities of the noise
    are float64; see `discrete_gaussian`. Records must be int32 or int64. Floats
    are refused, because they may be not finite.

    Attributes:
        l2_norm_clip: Bound on one record's norm, in the record's unit, >= 0.
        scale: The parameter sigma of the discrete Gaussian noise on the sum, in
            the record's unit: 0, or in [1e-6, 2^40]. The standard deviation of
            the noise is smaller than `scale`; by less than a relative 1e-6 if
            `scale` is at least 1.

    Source: Canonne, Kamath, Steinke (2020), arXiv:2004.00010v4, Theorem 14 and
    section 5.

    Records of floats must be rounded to integers first; `QuantizedSumQuery`
    does it for you. Here coordinates are rounded to steps of 1/16, and the
    answer is divided by 16. The bound has room for the rounding of each of the
    two coordinates:

    >>> from keras_dp.dp_queries.normalized_query import NormalizedQuery
    >>> steps, bound = 16, 2 * 16 + 2 ** 0.5 / 2
    >>> query = NormalizedQuery(
    ...     DiscreteGaussianSumQuery(bound, scale=0.0), denominator=steps)
    >>> def quantized(records):
    ...     return tf.cast(tf.round(records * steps), tf.int32)
    >>> state = query.initial_global_state()
    >>> sample = query.accumulate_records(
    ...     query.derive_sample_params(state),
    ...     query.initial_sample_state(tf.zeros([2], tf.int32)),
    ...     quantized(tf.constant([[1.01, -0.5], [0.0, 8.0]])))
    >>> query.get_noised_result(sample, state).value.numpy().tolist()
    [1.0, 1.5]
    """

    l2_norm_clip: float
    scale: float

    def __post_init__(self) -> None:
        _check.finite_non_negative(
            l2_norm_clip=self.l2_norm_clip, scale=self.scale
        )
        largest = discrete_gaussian.LARGEST_SCALE
        if self.scale and not _SMALLEST_SCALE <= self.scale <= largest:
            raise ValueError(
                f"`scale` must be 0, or in [{_SMALLEST_SCALE}, {largest}]. "
                f"Received: scale={self.scale!r}."
            )
        as_floats(self, "l2_norm_clip", "scale")

    @override
    def initial_global_state(
        self, seed: int | None = None
    ) -> DiscreteGaussianState:
        return DiscreteGaussianState(seeds.fresh(seed))

    @override
    def derive_sample_params(
        self, global_state: DiscreteGaussianState
    ) -> tf.Tensor:
        return tf.constant(self.l2_norm_clip, tf.float64)

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        return tf.nest.map_structure(_integers, zeros_like_record(template))

    @override
    def bounded_sum(
        self,
        params: tf.Tensor,
        like: Nest,
        records: Nest,
        mask: tf.Tensor | None,
    ) -> Nest:
        records = tf.nest.map_structure(_materialized, records)
        leaves = tf.nest.flatten(records)
        weights = records_lib.masked(records_lib.ones(leaves[0]), mask)
        sums = [
            records_lib.weighted_sum(leaf, weights)
            for leaf in _bounded(leaves, params)
        ]
        return tf.nest.pack_sequence_as(records, sums)

    @override
    def planned_event(
        self, global_state: DiscreteGaussianState
    ) -> DiscreteGaussianEvent:
        return DiscreteGaussianEvent(
            tf.constant(self.l2_norm_clip, tf.float64),
            tf.constant(self.scale, tf.float64),
        )

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: DiscreteGaussianState
    ) -> QueryResult:
        leaves = tf.nest.flatten(sample_state)
        following, *own = seeds.split(global_state.seed, len(leaves) + 1)
        noised = [
            leaf
            + discrete_gaussian.sample(self.scale, leaf.shape, seed, leaf.dtype)
            for leaf, seed in zip(leaves, own, strict=True)
        ]
        return QueryResult(
            value=tf.nest.pack_sequence_as(sample_state, noised),
            global_state=global_state._replace(seed=following),
            event=self.planned_event(global_state),
        )

    @override
    def ledger_events(
        self, event: DiscreteGaussianEvent, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        return (
            ledger.DiscreteGaussianSum(
                name=name,
                l2_norm_bound=float(event.l2_norm_bound),
                noise_scale=float(event.noise_scale),
            ),
        )


def _bounded(leaves: list[tf.Tensor], bound: tf.Tensor) -> list[tf.Tensor]:
    """Returns the records; those beyond the bound are scaled and truncated.

    If rounding could make a scaled record too long, it is scaled a little
    further. A squared norm below 2^53 is exact. The rounding error of a larger
    one, and of products, is at most `n + 4` half ulp for `n` coordinates.
    """
    values = [tf.cast(leaf, tf.float64) for leaf in leaves]
    size = sum(tf.size(leaf[:1], out_type=tf.int64) for leaf in leaves)
    slack = 1 + (tf.cast(size, tf.float64) + 4) * _HALF_ULP
    norm = _largest_norm(values, slack)
    is_longer = norm > bound
    length = tf.where(is_longer, norm, tf.ones_like(norm))
    goal = tf.where(is_longer, bound, tf.ones_like(norm))
    nearest = [
        _towards_zero(x * _along(goal, x) / _along(length, x)) for x in values
    ]
    fits = _largest_norm(nearest, slack) <= bound
    less = goal / length / tf.square(slack)
    bounded = []
    for leaf, x, near in zip(leaves, values, nearest, strict=True):
        shorter = _towards_zero(x * _along(less, x))
        shorter = tf.where(_along(fits, x), near, shorter)
        shorter = tf.cast(shorter, leaf.dtype)
        bounded.append(tf.where(_along(is_longer, x), shorter, leaf))
    return bounded


def _towards_zero(x: tf.Tensor) -> tf.Tensor:
    return tf.sign(x) * tf.floor(tf.abs(x))


def _largest_norm(values: list[tf.Tensor], slack: tf.Tensor) -> tf.Tensor:
    """Returns each record's norm, or a bound on one that is not exact."""
    square = tf.add_n(
        [
            tf.reduce_sum(tf.square(x), axis=tf.range(1, x.shape.rank))
            for x in values
        ]
    )
    norm = tf.sqrt(square)
    return tf.where(square < _LARGEST_EXACT, norm, norm * slack)


def _along(each: tf.Tensor, leaf: tf.Tensor) -> tf.Tensor:
    ones = [1] * (leaf.shape.rank - 1)
    return tf.reshape(each, tf.concat([tf.shape(leaf)[:1], ones], axis=0))


def _materialized(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, records_lib.LazyRecords):
        leaf = leaf.materialize()
    return _integers(tf.convert_to_tensor(leaf))


def _integers(leaf: tf.Tensor) -> tf.Tensor:
    if leaf.dtype not in {tf.int32, tf.int64}:
        raise TypeError(
            "`records` must be int32 or int64 tensors. Received: a tensor of "
            f"dtype {leaf.dtype.name}. Round floats to integers first, or use "
            "QuantizedSumQuery, which does it."
        )
    return leaf
