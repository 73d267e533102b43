"""Queries that hold another query, and the one that divides by a number."""

import dataclasses

import keras
import tensorflow as tf

from keras_dp import _check, ledger
from keras_dp._override import override
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    LeafNoise,
    Mechanism,
    Nest,
    QueryResult,
    divided,
)
from keras_dp.dp_queries.saving import register, set_fields


class WrappingQuery(DPQuery):
    """Passes every call on to the query inside, unless a subclass overrides it.

    So its state and its answers are those of the query inside. An exception is
    `result_noise`, which raises: a subclass that changes answers would be wrong
    about the noise in them. A subclass that knows its noise overrides it.
    """

    __slots__ = ()

    query: DPQuery

    @property
    def inner(self) -> DPQuery:
        """The query inside: `query`, where a subclass has no other."""
        return self.query

    def inner_state(self, global_state: Nest) -> Nest:
        """Returns the state of the query inside."""
        return global_state

    def released(
        self, sample_state: Nest, global_state: Nest
    ) -> tuple[QueryResult, list[LeafNoise]]:
        """Returns the result of the query inside, and the noise in it."""
        state = self.inner_state(global_state)
        result = self.inner.get_noised_result(sample_state, state)
        return result, self.inner.result_noise(state, result.value)

    @override
    def initial_global_state(self, seed: int | None = None) -> Nest:
        return self.inner.initial_global_state(seed)

    @override
    def derive_sample_params(self, global_state: Nest) -> Nest:
        return self.inner.derive_sample_params(self.inner_state(global_state))

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        return self.inner.initial_sample_state(template)

    @override
    def accumulate_records(
        self,
        params: Nest,
        sample_state: Nest,
        records: Nest,
        mask: tf.Tensor | None = None,
    ) -> Nest:
        return self.inner.accumulate_records(
            params, sample_state, records, mask
        )

    @override
    def merge_sample_states(self, state_1: Nest, state_2: Nest) -> Nest:
        return self.inner.merge_sample_states(state_1, state_2)

    @override
    def planned_event(self, global_state: Nest) -> Nest:
        return self.inner.planned_event(self.inner_state(global_state))

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: Nest
    ) -> QueryResult:
        return self.inner.get_noised_result(sample_state, global_state)

    @override
    def ledger_events(
        self, event: Nest, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        return self.inner.ledger_events(event, name)

    @override
    def mechanisms(
        self, sample_state: Nest, global_state: Nest
    ) -> list[Mechanism]:
        state = self.inner_state(global_state)
        return self.inner.mechanisms(sample_state, state)

    @property
    @override
    def adapts(self) -> bool:
        return self.inner.adapts

    @property
    @override
    def is_proven(self) -> bool:
        return self.inner.is_proven

    @override
    def coming_events(
        self, global_state: Nest
    ) -> list[tuple[Nest, int]] | None:
        return self.inner.coming_events(self.inner_state(global_state))

    @override
    def derive_metrics(self, global_state: Nest) -> dict[str, tf.Tensor]:
        return self.inner.derive_metrics(self.inner_state(global_state))


def checked_denominator(denominator: float | None) -> float:
    """Returns a public denominator, finite and > 0."""
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
        divisors = [self.denominator] * len(keras.tree.flatten(result.value))
        return result._replace(value=divided(result.value, divisors))

    @override
    def result_noise(self, global_state: Nest, value: Nest) -> list[LeafNoise]:
        return [
            each._replace(scale=each.scale / self.denominator)
            for each in self.numerator_query.result_noise(global_state, value)
        ]
