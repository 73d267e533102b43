"""What queries whose answers are changed after the noise have in common."""

import abc
from collections.abc import Mapping
from typing import Any, Self

import keras
import tensorflow as tf
from typing_extensions import override

from keras_dp import ledger
from keras_dp.dp_queries.dp_query import DPQuery, LeafNoise, Nest, QueryResult


class PostProcessedQuery(DPQuery):
    """A query whose answers are changed by their values and public numbers.

    Everything but the value of a release is that of the query inside, which
    must know its noise. `result_noise` raises: what is answered is no longer a
    sum plus noise.
    """

    __slots__ = ()

    query: DPQuery

    @abc.abstractmethod
    def processed(self, value: Nest, noise: list[LeafNoise]) -> Nest:
        """Returns what is answered instead of `value`.

        Args:
            value: What the query inside released.
            noise: Its law in each of `tf.nest.flatten(value)`.
        """

    @override
    def get_config(self) -> dict[str, Any]:
        config = DPQuery.get_config(self)
        query = keras.saving.serialize_keras_object(self.query)
        return {**config, "query": query}

    @classmethod
    @override
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        query = keras.saving.deserialize_keras_object(config["query"])
        return cls(**{**config, "query": query})

    @override
    def initial_global_state(self, seed: int | None = None) -> Nest:
        return self.query.initial_global_state(seed)

    @override
    def derive_sample_params(self, global_state: Nest) -> Nest:
        return self.query.derive_sample_params(global_state)

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        return self.query.initial_sample_state(template)

    @override
    def preprocess_record(self, params: Nest, record: Nest) -> Nest:
        return self.query.preprocess_record(params, record)

    @override
    def accumulate_preprocessed_record(
        self, sample_state: Nest, preprocessed_record: Nest
    ) -> Nest:
        return self.query.accumulate_preprocessed_record(
            sample_state, preprocessed_record
        )

    @override
    def accumulate_record(
        self, params: Nest, sample_state: Nest, record: Nest
    ) -> Nest:
        return self.query.accumulate_record(params, sample_state, record)

    @override
    def accumulate_records(
        self,
        params: Nest,
        sample_state: Nest,
        records: Nest,
        mask: tf.Tensor | None = None,
    ) -> Nest:
        return self.query.accumulate_records(
            params, sample_state, records, mask
        )

    @override
    def merge_sample_states(self, state_1: Nest, state_2: Nest) -> Nest:
        return self.query.merge_sample_states(state_1, state_2)

    @override
    def planned_event(self, global_state: Nest) -> Nest:
        return self.query.planned_event(global_state)

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: Nest
    ) -> QueryResult:
        result = self.query.get_noised_result(sample_state, global_state)
        noise = self.query.result_noise(global_state, result.value)
        return result._replace(value=self.processed(result.value, noise))

    @override
    def ledger_events(
        self, event: Nest, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        return self.query.ledger_events(event, name)

    @property
    @override
    def adapts(self) -> bool:
        return self.query.adapts

    @property
    @override
    def seeded(self) -> bool:
        return self.query.seeded

    @override
    def derive_metrics(self, global_state: Nest) -> dict[str, tf.Tensor]:
        return self.query.derive_metrics(global_state)


def check_query(query: DPQuery) -> None:
    """Raises unless what is to be post-processed is a query."""
    if not isinstance(query, DPQuery):
        raise TypeError(
            f"`query` must be a DPQuery. Received: query={query!r}."
        )
