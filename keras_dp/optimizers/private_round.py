"""One round, as pure functions that take a state and return the next one."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import keras
import tensorflow as tf

from keras_dp import ledger
from keras_dp.dp_queries import DPQuery, NestedQuery
from keras_dp.errors import PrivateTrainingError
from keras_dp.optimizers.groups import VariableGroups

GRADIENTS = "gradients"

# The values of each query of a round, by its name.
State: TypeAlias = Mapping[str, Any]  # The global states.
Sample: TypeAlias = Mapping[str, Any]  # The states of a sample.
Event: TypeAlias = Mapping[str, Any]  # The events of a release.
Answers: TypeAlias = Mapping[str, Any]  # The noised answers.


class RecordBatch(NamedTuple):
    """A batch of records for one query: tensors `[batch, ...]` or lazy records.

    The mask, of shape `[batch]`, is false for padding, which can be in any row.
    It is `None` if there is no padding.
    """

    records: Any
    mask: tf.Tensor | None


class Released(NamedTuple):
    """The result of one round, with answers, states and events by query.

    `gradients` are the noised answers of the variables, in their order.
    """

    gradients: list[tf.Tensor]
    answers: Answers
    global_state: State
    event: Event


@dataclasses.dataclass(frozen=True)
class PrivateRound:
    """The queries of one round, and how they are answered.

    Its methods keep no state: they take it, and return the next one. Call them
    in this order: `plan`, `initial_sample`, `accumulate` for each physical
    batch, `release`.

    All queries see one sample, as in a `NestedQuery`. Their records may differ:
    examples for one query and microbatches for another, each with its own mask.
    Without `groups` the record of the gradients is one list.

    Guarantee: the guarantees of the queries, composed over one sample. `plan`
    returns the event of the next `release`, from the public state only.
    """

    queries: Mapping[str, DPQuery]
    groups: VariableGroups | None = None

    def __post_init__(self) -> None:
        frozen = MappingProxyType(dict(self.queries))
        object.__setattr__(self, "queries", frozen)

    @classmethod
    def of(
        cls,
        gradients: DPQuery,
        side_queries: Mapping[str, DPQuery] | None = None,
        groups: VariableGroups | None = None,
    ) -> "PrivateRound":
        """Returns a round: the query of the gradients is the first."""
        return cls({GRADIENTS: gradients, **(side_queries or {})}, groups)

    @property
    def as_one(self) -> NestedQuery:
        """The queries as one, where all see the same batches."""
        return NestedQuery(dict(self.queries))

    @property
    def adapts(self) -> bool:
        """Whether events change from round to round."""
        return self.as_one.adapts

    @property
    def is_proven(self) -> bool:
        """Whether a query has a bound that holds in floating point."""
        return self.as_one.is_proven

    def fingerprint(self) -> str:
        """Returns the queries and groups as text, to be compared later.

        Text is compared, because an object that was changed in place is still
        equal to itself.
        """
        return repr((dict(self.queries), self.groups))

    def prepare(self) -> None:
        """Does nothing here; a subclass may prepare a sample.

        It is called before each sample, outside compiled functions.
        """

    def initial_state(self, seed: int | None) -> State:
        """Returns the global state of each query."""
        return self.as_one.initial_global_state(seed)

    def templates(
        self, variables: list[Any], side_templates: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns a template of one record for each query."""
        specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
        return {GRADIENTS: self._grouped(variables, specs), **side_templates}

    def initial_sample(self, templates: Mapping[str, Any]) -> Sample:
        """Returns the state of an empty sample for each query."""
        return self.as_one.initial_sample_state(templates)

    def check_sums(self, templates: Mapping[str, Any]) -> None:
        """Raises unless all queries merge samples by adding their states.

        Replicas need this: they add the states of their parts of a sample.
        """
        for name, query in self.queries.items():
            empty = query.initial_sample_state(templates[name])
            three, five, eight = (
                keras.tree.map_structure(
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
                    f"{name}={query!r}. Train on one replica."
                )

    def accumulate(
        self,
        state: State,
        sample: Sample,
        variables: list[Any],
        batches: Mapping[str, RecordBatch],
    ) -> Sample:
        """Returns the sample with a physical batch added.

        The records of the gradients are a list with one entry for each
        variable.
        """
        gradients = batches[GRADIENTS]
        records = self._grouped(variables, gradients.records)
        batches = {**batches, GRADIENTS: gradients._replace(records=records)}
        return {
            name: query.accumulate_records(
                query.derive_sample_params(state[name]),
                sample[name],
                *batches[name],
            )
            for name, query in self.queries.items()
        }

    def plan(self, state: State) -> Event:
        """Returns the event of the next release, by name of the query."""
        return self.as_one.planned_event(state)

    def coming_events(self, state: State) -> list[tuple[Event, int]] | None:
        """Returns the events of all rounds to come, if they are fixed already.

        See `DPQuery.coming_events`; the state must have values.
        """
        return self.as_one.coming_events(state)

    def release(
        self,
        sample: Sample,
        state: State,
        variables: list[Any],
        planned: Event,
    ) -> Released:
        """Returns the noised answers, the next state and the event.

        Guarantee: all answers are 0 unless the event is the `planned` one,
        which the ledger has. If the state was changed after the ledger recorded
        the round, for example to have less noise, nothing is released.
        """
        values, following, event = self.as_one.get_noised_result(sample, state)
        answers = _if_equal(event, planned, values)
        gradients = answers[GRADIENTS]
        if self.groups is not None:
            gradients = self.groups.join(variables, gradients)
        return Released(gradients, answers, following, event)

    def _grouped(self, variables: list[Any], parts: Any) -> Any:
        if self.groups is None:
            return list(parts)
        return self.groups.split(variables, list(parts))

    def ledger_events(
        self, event: Event, gradient_bound_factor: int = 1
    ) -> tuple[ledger.SumQueryEvent, ...]:
        """Returns the events of a round for the ledger.

        One privacy unit moves the sum of the gradients by at most
        `gradient_bound_factor` times the bound on one record. If it is not 1,
        the query of the gradients must bound an L2 norm.
        """
        events: list[ledger.SumQueryEvent] = []
        for name, query in self.queries.items():
            own = query.ledger_events(event[name], name)
            if name == GRADIENTS and gradient_bound_factor != 1:
                own = tuple(_times(each, gradient_bound_factor) for each in own)
            events.extend(own)
        return tuple(events)

    def metrics(self, state: State) -> dict[str, tf.Tensor]:
        """Returns the public scalars of all queries, by name.

        The names of a side query begin with its own name. The names of the
        query of the gradients have no prefix.
        """
        return {
            name.removeprefix(f"{GRADIENTS}/"): value
            for name, value in self.as_one.derive_metrics(state).items()
        }


def _if_equal(event: Event, planned: Event, answers: Answers) -> Answers:
    """Returns the answers if two events are equal, and zeros otherwise."""
    keras.tree.assert_same_structure(event, planned)
    equal = [
        tf.reduce_all(tf.equal(one, other))
        for one, other in zip(
            keras.tree.flatten(event), keras.tree.flatten(planned), strict=True
        )
    ]
    if not equal:
        return answers
    return tf.cond(
        tf.reduce_all(tf.stack(equal)),
        lambda: keras.tree.map_structure(tf.identity, answers),
        lambda: keras.tree.map_structure(tf.zeros_like, answers),
    )


def _leaves(state: Any) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(leaf) for leaf in keras.tree.flatten(state)]


def _equal(one: Any, two: Any) -> bool:
    pairs = zip(_leaves(one), _leaves(two), strict=True)
    return all(bool(tf.reduce_all(x == y)) for x, y in pairs)


def _times(event: ledger.SumQueryEvent, factor: int) -> ledger.SumQueryEvent:
    """Returns the event with a larger bound, and the same noise."""
    if isinstance(event, ledger.NonPrivateSum):
        return event
    if isinstance(
        event,
        (
            ledger.GaussianSum,
            ledger.CorrelatedSum,
        ),
    ):
        return dataclasses.replace(
            event, l2_norm_bound=factor * event.l2_norm_bound
        )
    raise PrivateTrainingError(
        "Examples in microbatches must be answered by queries that bound an L2 "
        "norm. One example can replace the encoded vector of a microbatch by "
        f"another, which no bound on one vector covers. Received: {event!r}. "
        "Use single examples, or UserBatches, which draw fixed groups of them."
    )
