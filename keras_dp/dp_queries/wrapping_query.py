"""The base class of queries that hold another query."""

import abc

import tensorflow as tf

from keras_dp import ledger
from keras_dp._override import override
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    LeafNoise,
    Mechanism,
    Nest,
    QueryResult,
)


class WrappingQuery(DPQuery):
    """Passes every call on to the query inside, unless a subclass overrides it.

    So its state and its answers are those of the query inside. An exception is
    `result_noise`, which raises: a subclass that changes answers would be wrong
    about the noise in them. A subclass that knows its noise overrides it.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def inner(self) -> DPQuery:
        """The query inside."""

    def inner_state(self, global_state: Nest) -> Nest:
        """Returns the state of the query inside."""
        return global_state

    def released(
        self, sample_state: Nest, global_state: Nest
    ) -> tuple[QueryResult, list[LeafNoise]]:
        """Returns the result of the query inside, and the noise in its value.

        Raises:
            TypeError: The query inside does not know its noise.
        """
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
