"""Several queries as one: each answers its own part of every record."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from keras_dp import _nests, ledger
from keras_dp._counted import in_step
from keras_dp._override import override
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    LeafNoise,
    Mechanism,
    Nest,
    QueryResult,
)
from keras_dp.dp_queries.saving import register
from keras_dp.noise import seeds

# More rounds than any training has.
_ENDLESS = 2**62
_RULE = "`queries` must have a structure that is a prefix of the record's."


@register
@dataclasses.dataclass(frozen=True, slots=True)
class NestedQuery(DPQuery):
    """Answers each part of a record by a query of its own, a *leaf query*.

    `queries` is a nest (dicts with string keys, lists, tuples) whose leaves are
    queries. Its structure is a prefix of the record's structure: each leaf
    query answers the part of the record at its place. States have the structure
    of `queries`.

    Guarantee: each leaf query has its own guarantee, for its part of the
    record. All leaf queries see the same sample. The ledger gets the events of
    all of them under one sampling event, and the accountant composes them as
    one round. If a part of a record is not finite, only the query of this part
    drops it.

    Attributes:
        queries: Nest of at least one query. The query keeps a copy that cannot
            be changed. A NamedTuple comes back as a tuple from the config of a
            saved model.

    Raises:
        TypeError: `queries` is empty, or has a leaf that is not a DPQuery.
        ValueError: A key of a dict is not a string, is empty, or has a `/`.

    Source: McMahan et al. (2018), arXiv:1812.06210v2, section 4.

    >>> from keras_dp.dp_queries.gaussian.gaussian_sums import GaussianSumQuery
    >>> query = NestedQuery({"a": GaussianSumQuery(1.0, 2.0),
    ...                      "b": [GaussianSumQuery(3.0, 4.0)]})
    >>> event = query.planned_event(query.initial_global_state())
    >>> for leaf in query.ledger_events(event, name="gradients"): print(leaf)
    GaussianSum(name='gradients/a', l2_norm_bound=1.0, noise_stddev=2.0)
    GaussianSum(name='gradients/b/0', l2_norm_bound=3.0, noise_stddev=4.0)
    """

    queries: Nest

    def __post_init__(self) -> None:
        _check_queries(self.queries)
        object.__setattr__(self, "queries", _nests.frozen(self.queries))

    @property
    def paths(self) -> tuple[str, ...]:
        """The name of each leaf query: its keys, joined by `/`."""
        return tuple(_nests.paths(self.queries))

    @override
    def initial_global_state(self, seed: int | None = None) -> Nest:
        each = seeds.children(seed, len(self._leaves))
        return self._pack(
            [
                query.initial_global_state(own)
                for query, own in zip(self._leaves, each, strict=True)
            ]
        )

    @override
    def derive_sample_params(self, global_state: Nest) -> Nest:
        return self._map(
            lambda query, state: query.derive_sample_params(state), global_state
        )

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        return self._map(
            lambda query, part: query.initial_sample_state(part), template
        )

    @override
    def accumulate_records(
        self,
        params: Nest,
        sample_state: Nest,
        records: Nest,
        mask: tf.Tensor | None = None,
    ) -> Nest:
        return self._map(
            lambda query, own, state, part: query.accumulate_records(
                own, state, part, mask
            ),
            params,
            sample_state,
            records,
        )

    @override
    def merge_sample_states(self, state_1: Nest, state_2: Nest) -> Nest:
        return self._map(
            lambda query, one, two: query.merge_sample_states(one, two),
            state_1,
            state_2,
        )

    @override
    def planned_event(self, global_state: Nest) -> Nest:
        return self._map(
            lambda query, state: query.planned_event(state), global_state
        )

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: Nest
    ) -> QueryResult:
        results = [
            query.get_noised_result(sample, state)
            for query, sample, state in self._zip(sample_state, global_state)
        ]
        return QueryResult(
            value=self._pack([result.value for result in results]),
            global_state=self._pack([r.global_state for r in results]),
            event=self._pack([result.event for result in results]),
        )

    @override
    def ledger_events(
        self, event: Nest, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        events: list[ledger.SumQueryEvent] = []
        for path, (query, own) in zip(
            self.paths, self._zip(event), strict=True
        ):
            events.extend(
                query.ledger_events(own, f"{name}/{path}" if path else name)
            )
        return tuple(events)

    @override
    def mechanisms(
        self, sample_state: Nest, global_state: Nest
    ) -> list[Mechanism]:
        return [
            mechanism
            for query, sample, state in self._zip(sample_state, global_state)
            for mechanism in query.mechanisms(sample, state)
        ]

    @override
    def derive_metrics(self, global_state: Nest) -> dict[str, tf.Tensor]:
        return {
            f"{path}/{name}": value
            for path, (query, state) in zip(
                self.paths, self._zip(global_state), strict=True
            )
            for name, value in query.derive_metrics(state).items()
        }

    @property
    @override
    def adapts(self) -> bool:
        return any(query.adapts for query in self._leaves)

    @property
    @override
    def is_proven(self) -> bool:
        return any(query.is_proven for query in self._leaves)

    @override
    def coming_events(
        self, global_state: Nest
    ) -> list[tuple[Nest, int]] | None:
        pairs = self._zip(global_state)
        each = [query.coming_events(state) for query, state in pairs]
        if all(events is None for events in each):
            return None
        # The rounds go on until those of the first query end.
        endless = (
            [(query.planned_event(state), _ENDLESS)]
            if events is None
            else events
            for (query, state), events in zip(pairs, each, strict=True)
        )
        return [
            (self._pack(list(events)), count)
            for events, count in in_step(*endless)
        ]

    @override
    def result_noise(self, global_state: Nest, value: Nest) -> list[LeafNoise]:
        return [
            noise._replace(part=f"{path}/{noise.part}")
            for path, (query, state, part) in zip(
                self.paths, self._zip(global_state, value), strict=True
            )
            for noise in query.result_noise(state, part)
        ]

    @property
    def _leaves(self) -> list[DPQuery]:
        return _nests.leaves(self.queries)

    def _zip(self, *of: Nest) -> list[tuple[Any, ...]]:
        """Returns each leaf query with its part of each nest."""
        parts = [_nests.split(self.queries, part, _RULE) for part in of]
        return list(zip(self._leaves, *parts, strict=True))

    def _map(self, function: Callable[..., Any], *of: Nest) -> Nest:
        return self._pack([function(*each) for each in self._zip(*of)])

    def _pack(self, parts: list[Any]) -> Nest:
        """Puts one nest per leaf query into the structure of `queries`."""
        return _nests.join(self.queries, iter(parts))


def _check_queries(queries: Nest) -> None:
    each = _nests.leaves(queries)
    if not each or not all(isinstance(leaf, DPQuery) for leaf in each):
        raise TypeError(
            "`queries` must be a nest of at least one DPQuery and of "
            f"nothing else. Received: queries={queries!r}."
        )
    if not all(
        key and isinstance(key, str) and "/" not in key
        for key in _keys_of_dicts(queries)
    ):
        raise ValueError(
            "`queries` must have non-empty strings without `/` as keys of its "
            "dicts: they make the paths that name queries in the ledger. "
            f"Received: queries={queries!r}."
        )


def _keys_of_dicts(queries: Nest) -> list[Any]:
    own = list(queries) if isinstance(queries, Mapping) else []
    below = _nests.children(queries) or []
    return own + [key for _, child in below for key in _keys_of_dicts(child)]
