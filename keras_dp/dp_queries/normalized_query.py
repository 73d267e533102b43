"""Any query, divided by a fixed public number."""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_dp import _check
from keras_dp._override import override
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    LeafNoise,
    Nest,
    QueryResult,
)
from keras_dp.dp_queries.saving import register, set_fields
from keras_dp.dp_queries.wrapping_query import WrappingQuery


def checked_denominator(denominator: float | None) -> float:
    """Returns a public denominator.

    Raises:
        TypeError: `denominator` is `None`.
        ValueError: `denominator` is not finite and > 0.
    """
    if denominator is None:
        raise TypeError(
            "`denominator` must be given: the expected number of records in a "
            "sample, such as sampling_probability * N. Received: None."
        )
    _check.finite_positive(denominator=denominator)
    return float(denominator)


@register
@dataclasses.dataclass(frozen=True, slots=True)
class NormalizedQuery(WrappingQuery):
    """Divides the answer of a query by a fixed, public number.

    Guarantee: the guarantee of `numerator_query`, for every adjacency relation.
    The division adds no cost, because `denominator` is a constant that is
    chosen before any data is seen, such as the expected size of a Poisson
    sample. It is never the number of records that were drawn, which is private.
    An answer in integers is divided in float64.

    Attributes:
        numerator_query: The query whose answer is divided.
        denominator: The public constant, in records, > 0.

    >>> from keras_dp.dp_queries.gaussian.gaussian_sums import GaussianSumQuery
    >>> query = NormalizedQuery(GaussianSumQuery(5.0, stddev=0.0), 2.0)
    >>> state = query.initial_global_state()
    >>> sample = query.accumulate_records(
    ...     query.derive_sample_params(state),
    ...     query.initial_sample_state(tf.zeros([2])),
    ...     tf.constant([[6.0, 8.0], [1.0, 0.0]]))
    >>> query.get_noised_result(sample, state).value.numpy().tolist()
    [2.0, 2.0]
    """

    numerator_query: DPQuery
    denominator: float

    def __post_init__(self) -> None:
        _check.kind(DPQuery, numerator_query=self.numerator_query)
        set_fields(self, denominator=checked_denominator(self.denominator))

    @property
    @override
    def inner(self) -> DPQuery:
        return self.numerator_query

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: Nest
    ) -> QueryResult:
        result = self.numerator_query.get_noised_result(
            sample_state, global_state
        )

        def divided(total: Any) -> tf.Tensor:
            total = tf.convert_to_tensor(total)
            if not total.dtype.is_floating:
                total = tf.cast(total, tf.float64)
            return total / tf.constant(self.denominator, total.dtype)

        return result._replace(
            value=tf.nest.map_structure(divided, result.value)
        )

    @override
    def result_noise(self, global_state: Nest, value: Nest) -> list[LeafNoise]:
        return [
            each._replace(scale=each.scale / self.denominator)
            for each in self.numerator_query.result_noise(global_state, value)
        ]
