"""Everything that is asked of one sample: its gradients, and what else."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from keras_dp import ledger
from keras_dp.dp_queries import DPQuery, QueryResult
from keras_dp.errors import PrivateTrainingError
from keras_dp.noise.seeds import children

GRADIENTS = "gradients"


class Asked(NamedTuple):
    """A batch of records for one query.

    Attributes:
        records: Nest with leaves `[batch, ...]`, or lazy ones.
        mask: Shape `[batch]`, false for padding; `None` if there is none.
    """

    records: Any
    mask: tf.Tensor | None


class Grouping(NamedTuple):
    """How the examples of a physical batch make microbatches.

    Attributes:
        rows: Consecutive rows of the batch that make one, padding included.
        size: Public number that the sum of their gradients is divided by.
        bound_factor: By how many times a record's bound the privacy unit moves
            the sum over the sample.
    """

    rows: int
    size: float
    bound_factor: int


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

    def check_sums(self, templates: Mapping[str, Any]) -> None:
        """Raises unless samples are joined by adding up their states.

        Replicas sum the states of their parts of a sample.

        Args:
            templates: As in `initial_sample`.

        Raises:
            PrivateTrainingError: A query joins samples in another way.
        """
        for name, query in self.queries.items():
            empty = query.initial_sample_state(templates[name])
            three, five, eight = (
                tf.nest.map_structure(
                    lambda leaf, n=n: tf.zeros_like(leaf) + n,
                    empty,
                )
                for n in (3, 5, 8)
            )
            joined = query.merge_sample_states(three, five)
            if not (
                _equal(joined, eight)
                and _equal(query.merge_sample_states(empty, five), five)
                and not any(tf.reduce_any(x != 0) for x in _leaves(empty))
            ):
                raise PrivateTrainingError(
                    "Each query must join samples by adding up their states, "
                    "to be asked on several replicas. Received: "
                    f"{name}={query!r}. Train on one."
                )

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


def _leaves(state: Any) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(state)]


def _equal(one: Any, two: Any) -> bool:
    pairs = zip(_leaves(one), _leaves(two), strict=True)
    return all(bool(tf.reduce_all(x == y)) for x, y in pairs)


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


def asked_of(
    records: list[Any],
    mask: tf.Tensor | None,
    batch: int,
    grouping: Grouping | None,
) -> Asked:
    """Returns what the query of the gradients is asked: examples, or groups."""
    if grouping is None:
        return Asked(records, mask)
    weights = tf.ones([batch]) if mask is None else tf.cast(mask, tf.float32)
    weights /= grouping.size
    groups = [each.grouped(grouping.rows, weights) for each in records]
    # A group of padding alone is no record, not one of norm 0.
    rows = tf.reshape(weights > 0, [batch // grouping.rows, grouping.rows])
    return Asked(groups, tf.reduce_any(rows, axis=1))
