"""A sum without privacy, which the ledger marks as such."""

import dataclasses

import tensorflow as tf

from keras_dp import ledger
from keras_dp._override import override
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import (
    Nest,
    QueryResult,
    zeros_like_record,
)
from keras_dp.dp_queries.saving import register
from keras_dp.dp_queries.summing_query import SummingQuery


@register
@dataclasses.dataclass(frozen=True, slots=True)
class NoPrivacySumQuery(SummingQuery):
    """Sums records without a bound and without noise, for comparison.

    Guarantee: none. Each release is recorded as non-private, and every
    accountant returns epsilon = inf for a ledger with such a release. Records
    that are not finite are added as they are. Records may be integers.

    >>> query = NoPrivacySumQuery()
    >>> query.ledger_events(query.planned_event(()), name="loss")
    (NonPrivateSum(name='loss'),)
    """

    @override
    def initial_global_state(self, seed: int | None = None) -> tuple[()]:
        del seed  # Nothing is drawn.
        return ()

    @override
    def derive_sample_params(self, global_state: Nest) -> tuple[()]:
        return ()

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        return zeros_like_record(template)

    @override
    def bounded_sum(
        self, params: Nest, like: Nest, records: Nest, mask: tf.Tensor | None
    ) -> Nest:
        first = tf.nest.flatten(records)[0]
        weights = records_lib.masked(records_lib.ones(first), mask)
        return records_lib.weighted_sums(records, weights)

    @override
    def planned_event(self, global_state: Nest) -> tuple[()]:
        return ()

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: Nest
    ) -> QueryResult:
        return QueryResult(sample_state, global_state, event=())

    @override
    def ledger_events(
        self, event: Nest, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        return (ledger.NonPrivateSum(name=name),)
