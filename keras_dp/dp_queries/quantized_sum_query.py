"""Sums of records that are rounded to a grid, with discrete Gaussian noise."""

import dataclasses

import tensorflow as tf

from keras_dp import _check
from keras_dp._override import override
from keras_dp.dp_queries import chunked_sums
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.discrete_gaussian_sum_query import (
    DiscreteGaussianSumQuery,
)
from keras_dp.dp_queries.dp_query import (
    Nest,
    QueryResult,
)
from keras_dp.dp_queries.saving import as_floats, register
from keras_dp.dp_queries.summing_query import SummingQuery, empty_sum
from keras_dp.dp_queries.wrapping_query import WrappingQuery

# Sums of 2^22 records stay exact in float64.
_MOST_STEPS = 2.0**31
# More than the rounding of a norm of a billion coordinates in float64.
_ROUNDING = 2.0**-40


@register
@dataclasses.dataclass(frozen=True, slots=True)
class QuantizedSumQuery(SummingQuery, WrappingQuery):
    """Clips records, rounds them towards zero on a grid, and sums integers.

    The answer is an exact sum of integers plus discrete Gaussian noise, times
    the step of the grid, as float32. So it has no low bits of floating point
    that could reveal more than the guarantee allows (Mironov 2012).

    Guarantee: adding, removing or zeroing out one record moves the sum of
    integers by at most `l2_norm_clip / granularity` in joint L2 norm, plus a
    relative 2^-40, and replacing one by at most twice that, for every record:
    rounding towards zero makes no record longer. A record that is not finite
    counts as zero.

    Attributes:
        l2_norm_clip: Bound on one record's norm, in the record's unit, >= 0.
        scale: The parameter sigma of the discrete Gaussian noise on the sum, in
            the record's unit, >= 0. The standard deviation of the noise is
            smaller than `scale`; by less than a relative 1e-6 if `scale` is at
            least `granularity`.
        granularity: The step of the grid, in the record's unit, > 0, and at
            least `l2_norm_clip / 2^31`. Coordinates smaller than a step become
            0. So take a small part of `l2_norm_clip / sqrt(n)` for records of n
            coordinates.
        chunk_bytes: How many bytes of records to build at a time, at least one
            record.

    Raises:
        ValueError: A number is out of its range.

    Source: Canonne, Kamath, Steinke (2020), arXiv:2004.00010v4, for the noise;
    Kairouz, Liu, Steinke (2021), arXiv:2102.06387v4, for scaling and clipping.
    We differ in rounding deterministically, and in not rotating records.

    >>> query = QuantizedSumQuery(5.0, scale=0.0, granularity=0.5)
    >>> state = query.initial_global_state()
    >>> sample = query.accumulate_record(
    ...     query.derive_sample_params(state),
    ...     query.initial_sample_state(tf.zeros([2])), tf.constant([6.2, 8.]))
    >>> query.get_noised_result(sample, state).value.numpy().tolist()
    [3.0, 3.5]
    """

    l2_norm_clip: float
    scale: float
    granularity: float
    chunk_bytes: int = 2**26

    def __post_init__(self) -> None:
        _check.finite_non_negative(
            l2_norm_clip=self.l2_norm_clip, scale=self.scale
        )
        _check.finite_positive(granularity=self.granularity)
        _check.integer_at_least(1, chunk_bytes=self.chunk_bytes)
        if self.l2_norm_clip > _MOST_STEPS * self.granularity:
            raise ValueError(
                "`granularity` must be at least `l2_norm_clip` / 2**31, so "
                "that sums of integers are exact. "
                f"Received: granularity={self.granularity!r}, "
                f"l2_norm_clip={self.l2_norm_clip!r}."
            )
        as_floats(self, "l2_norm_clip", "scale", "granularity")

    @property
    @override
    def inner(self) -> DiscreteGaussianSumQuery:
        """The query of the integers, in steps of the grid."""
        steps = self.l2_norm_clip / self.granularity
        return DiscreteGaussianSumQuery(
            steps * (1 + _ROUNDING), self.scale / self.granularity
        )

    @override
    def derive_sample_params(self, global_state: Nest) -> tuple[()]:
        return ()  # The grid and the clip are fixed.

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        return tf.nest.map_structure(
            lambda leaf: tf.zeros(leaf.shape, tf.int64), empty_sum(template)
        )

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: Nest
    ) -> QueryResult:
        result = self.inner.get_noised_result(sample_state, global_state)

        def in_unit(steps: tf.Tensor) -> tf.Tensor:
            value = tf.cast(steps, tf.float64) * self.granularity
            return tf.cast(value, tf.float32)

        return result._replace(
            value=tf.nest.map_structure(in_unit, result.value)
        )

    @override
    def bounded_sum(
        self, params: Nest, like: Nest, records: Nest, mask: tf.Tensor | None
    ) -> Nest:

        def contribution(rows: tf.Tensor) -> tf.Tensor:
            norms = records_lib.norms([rows])
            clip = tf.constant(self.l2_norm_clip, tf.float64)
            factors = records_lib.clip_factors(norms, clip)
            steps = rows * (factors / self.granularity)[:, tf.newaxis]
            return tf.sign(steps) * tf.floor(tf.abs(steps))

        sums = chunked_sums.chunked_sum(
            tf.nest.map_structure(lambda x: tf.cast(x, tf.float64), like),
            records,
            mask,
            self.chunk_bytes,
            contribution,
        )
        return tf.nest.map_structure(lambda x: tf.cast(x, tf.int64), sums)
