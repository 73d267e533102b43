"""An average without privacy, which the ledger marks as such."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf
from typing_extensions import override

from keras_dp.dp_queries.dp_query import (
    Nest,
    QueryResult,
    zeros_like_record,
)
from keras_dp.dp_queries.no_privacy_sum_query import (
    NoPrivacySumQuery,
    sum_and_weights,
)
from keras_dp.dp_queries.saving import register
from keras_dp.dp_queries.summing_query import SummingQuery
from keras_dp.dp_queries.wrapping_query import WrappingQuery


class NoPrivacyAverageSample(NamedTuple):
    """The sample of a `NoPrivacyAverageQuery`.

    Attributes:
        total: Sum of the records.
        count: The number of records, scalar float64.
    """

    total: Nest
    count: tf.Tensor


@register
@dataclasses.dataclass(frozen=True, slots=True)
class NoPrivacyAverageQuery(SummingQuery, WrappingQuery):
    """Averages records without a bound and without noise, for comparison.

    It divides by the number of records that were drawn. Guarantee: none. Each
    release is recorded as non-private, and every accountant returns
    epsilon = inf for a ledger with such a release. Records that are not finite
    are added as they are. Records may be integers; their average is float64.
    The average of an empty sample is zero.

    >>> query = NoPrivacyAverageQuery()
    >>> sample = query.initial_sample_state(tf.zeros([2]))
    >>> for record in ([5.0, 0.0], [-1.0, 2.0]):
    ...     sample = query.accumulate_record((), sample, tf.constant(record))
    >>> query.get_noised_result(sample, ()).value.numpy().tolist()
    [2.0, 1.0]
    """

    @property
    @override
    def inner(self) -> NoPrivacySumQuery:
        """The query of the total, without states, with its events."""
        return NoPrivacySumQuery()

    @override
    def initial_sample_state(self, template: Nest) -> NoPrivacyAverageSample:
        return NoPrivacyAverageSample(
            zeros_like_record(template), tf.constant(0.0, tf.float64)
        )

    @override
    def bounded_sum(
        self, params: Nest, like: Nest, records: Nest, mask: tf.Tensor | None
    ) -> NoPrivacyAverageSample:
        total, weights = sum_and_weights(records, mask)
        count = tf.reduce_sum(tf.cast(weights, tf.float64))
        return NoPrivacyAverageSample(total, count)

    @override
    def get_noised_result(
        self, sample_state: NoPrivacyAverageSample, global_state: Nest
    ) -> QueryResult:
        def averaged(total: tf.Tensor) -> tf.Tensor:
            dtype = total.dtype if total.dtype.is_floating else tf.float64
            return tf.math.divide_no_nan(
                tf.cast(total, dtype), tf.cast(sample_state.count, dtype)
            )

        value = tf.nest.map_structure(averaged, sample_state.total)
        return QueryResult(value, global_state, event=())
