"""Everything that is asked of one sample: its gradients, and what else."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from keras_dp import ledger
from keras_dp.dp_queries import DPQuery, QueryResult
from keras_dp.dp_queries.seeds import children
from keras_dp.errors import PrivateTrainingError

GRADIENTS = "gradients"


class Asked(NamedTuple):
    """A batch of records for one query.

    Attributes:
        records: Nest with leaves `[batch, ...]`, or lazy ones.
        mask: Shape `[batch]`, false for padding; `None` if there is none.
    """

    records: Any
    mask: tf.Tensor | None


class RoundQueries:
    """The queries of a round by name, over one sample.

    As a `NestedQuery` of them, but records of each may be other units of the
    sample (examples, or groups of them), with masks of their own.

    Attributes:
        queries: By name; that of the gradients first.
    """

    def __init__(
        self, gradients: DPQuery, beside: Mapping[str, DPQuery] | None = None
    ) -> None:
        self.queries = {GRADIENTS: gradients, **(beside or {})}

    @property
    def adapts(self) -> bool:
        """Whether events change from round to round."""
        return any(query.adapts for query in self.queries.values())

    @property
    def seeded(self) -> bool:
        """Whether a query brings a seed of its own."""
        return any(query.seeded for query in self.queries.values())

    def initial_state(self, seed: int | None) -> dict[str, Any]:
        """Returns the global state of each query."""
        each = children(seed, len(self.queries))
        return {
            name: query.initial_global_state(own)
            for (name, query), own in zip(
                self.queries.items(), each, strict=True
            )
        }

    def initial_sample(self, templates: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the state of an empty sample for each query."""
        return {
            name: query.initial_sample_state(templates[name])
            for name, query in self.queries.items()
        }

    def accumulate(
        self,
        state: Mapping[str, Any],
        sample: Mapping[str, Any],
        asked: Mapping[str, Asked],
    ) -> dict[str, Any]:
        """Returns the sample with a physical batch added."""
        return {
            name: query.accumulate_records(
                query.derive_sample_params(state[name]),
                sample[name],
                *asked[name],
            )
            for name, query in self.queries.items()
        }

    def planned_event(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the event of the next release."""
        return {
            name: query.planned_event(state[name])
            for name, query in self.queries.items()
        }

    def release(
        self, sample: Mapping[str, Any], state: Mapping[str, Any]
    ) -> QueryResult:
        """Returns the noised answers, the next state and the event."""
        results = {
            name: query.get_noised_result(sample[name], state[name])
            for name, query in self.queries.items()
        }
        return QueryResult(
            *(
                {name: result[field] for name, result in results.items()}
                for field in range(3)
            )
        )

    def ledger_events(
        self, event: Mapping[str, Any], gradient_bound_factor: int = 1
    ) -> tuple[ledger.SumQueryEvent, ...]:
        """Returns the events of a round for the ledger.

        Args:
            event: From `planned_event` or `release`.
            gradient_bound_factor: By how much more than a record's bound the
                privacy unit moves the sum of the gradients.
        """
        events: list[ledger.SumQueryEvent] = []
        for name, query in self.queries.items():
            own = query.ledger_events(event[name], name)
            if name == GRADIENTS and gradient_bound_factor != 1:
                own = tuple(_times(each, gradient_bound_factor) for each in own)
            events.extend(own)
        return tuple(events)

    def metrics(self, state: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Returns the public scalars of all queries, by name."""
        return {
            metric if name == GRADIENTS else f"{name}/{metric}": value
            for name, query in self.queries.items()
            for metric, value in query.derive_metrics(state[name]).items()
        }


def _times(event: ledger.SumQueryEvent, factor: int) -> ledger.SumQueryEvent:
    """Returns the event with a larger bound, and the same noise."""
    if isinstance(event, ledger.NonPrivateSum):
        return event
    if isinstance(
        event,
        (ledger.GaussianSum, ledger.DiscreteGaussianSum, ledger.TreeSum),
    ):
        return dataclasses.replace(
            event, l2_norm_bound=factor * event.l2_norm_bound
        )
    raise PrivateTrainingError(
        "Examples in microbatches must be answered by queries that bound an L2 "
        "norm: an example that moves a group from one encoded vector to "
        f"another is bounded by neither. Received: {event!r}. Sample groups "
        'that are fixed in advance (unit="microbatch"), or single examples.'
    )
