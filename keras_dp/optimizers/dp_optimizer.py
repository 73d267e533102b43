"""A Keras optimizer that takes private answers, and only those."""

from collections.abc import Mapping
from typing import Any, Self

import keras
import tensorflow as tf
from typing_extensions import override

from keras_dp import ledger as ledger_lib
from keras_dp.dp_queries import DPQuery
from keras_dp.errors import PrivateTrainingError
from keras_dp.optimizers.drawn_state import DrawnState
from keras_dp.optimizers.groups import (
    Patterns,
    VariableGroups,
    group_variables,
    patterns_from,
)
from keras_dp.optimizers.inner_optimizer import already_summed, check_inner
from keras_dp.optimizers.ledger_of_chief import LedgerOfChief
from keras_dp.optimizers.round_queries import GRADIENTS, Asked, RoundQueries
from keras_dp.optimizers.wrapping_optimizer import WrappingOptimizer

# In float32 the norms of gradients below this are rounded to 0.
_SMALLEST_CLIP = 1e-12


@keras.saving.register_keras_serializable(package="keras_dp")
class DPOptimizer(WrappingOptimizer):
    """Updates a model by a query's noised answers instead of gradients.

    Use it with `PrivateModel`, which hands per-example gradients to `query`.
    An ordinary model hands it gradients summed over the batch: it refuses
    them. The learning rate, schedules, momentum, weight decay and averages
    are those of `inner`; they only see noised answers, and cost nothing.

    Guarantee: every update is a function of earlier updates and of noised
    answers whose events the ledger covered before they were computed.

    Attributes:
        inner: Any Keras optimizer without gradient accumulation or loss
            scaling.
        query: The mechanism. Its record is the list of one example's
            gradients, in the order of `model.trainable_variables`; with
            `groups`, a dict of such lists.
        ledger: Where every round is recorded.
        groups: Name of a group to the pattern of its variables' paths; see
            `keras_dp.group_variables`.
        seed: Makes the noise reproducible, for tests; rounds are `seeded`.

    >>> import keras_dp
    >>> ledger = keras_dp.PrivacyLedger.in_memory(dataset="doc")
    >>> optimizer = DPOptimizer(
    ...     keras.optimizers.SGD(0.1), ledger=ledger,
    ...     query=keras_dp.GaussianAverageQuery(1.0, 1.1, denominator=256))
    >>> optimizer.apply([tf.zeros([2])], [keras.Variable([1.0, 2.0])])
    Traceback (most recent call last):
    ...
    keras_dp.errors.PrivateTrainingError: DPOptimizer was handed ordinary...
    """

    def __init__(
        self,
        inner: keras.optimizers.Optimizer,
        *,
        query: DPQuery,
        ledger: ledger_lib.PrivacyLedger | LedgerOfChief,
        groups: Patterns | VariableGroups | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(ledger, ledger_lib.PrivacyLedger | LedgerOfChief):
            raise TypeError(
                "`ledger` must be a PrivacyLedger, for every round is recorded "
                f"in it. Received: ledger={ledger!r}. Open one with "
                'keras_dp.PrivacyLedger.open("run.ledger", dataset="...").'
            )
        self._configure(inner, query, groups, seed, name)
        self._ledger: ledger_lib.PrivacyLedger | LedgerOfChief | None = ledger

    def _configure(
        self,
        inner: keras.optimizers.Optimizer,
        query: DPQuery,
        groups: Patterns | VariableGroups | None,
        seed: int | None,
        name: str | None,
    ) -> None:
        check_inner(inner)
        if isinstance(inner, DPOptimizer):
            raise TypeError("`inner` must not be private already.")
        if not isinstance(query, DPQuery):
            raise TypeError(
                f"`query` must be a DPQuery. Received: query={query!r}."
            )
        self._wrap(inner, name or f"dp_{inner.name}")
        self._asked = RoundQueries(query)
        resolved = groups if isinstance(groups, VariableGroups) else None
        self._resolved: VariableGroups | None = resolved
        self._groups = resolved.patterns if resolved else groups
        self._seed = seed
        self.is_recording = False
        self._ledger = None
        self._state: DrawnState | None = None

    @property
    def query(self) -> DPQuery:
        """The mechanism."""
        return self._asked.queries[GRADIENTS]

    @property
    def asked(self) -> RoundQueries:
        """All queries of a round: that of the gradients, and others."""
        return self._asked

    def ask(self, beside: Mapping[str, DPQuery]) -> None:
        """Sets what is asked of each sample beside its gradients.

        Raises:
            PrivateTrainingError: The optimizer was built for something else.
        """
        asked = RoundQueries(self.query, beside)
        if self.built and asked.queries != self._asked.queries:
            raise PrivateTrainingError(
                "An optimizer that was built must not be asked for something "
                f"else. Received: {sorted(asked.queries)!r}, where it was "
                f"built for {sorted(self._asked.queries)!r}. Compile with a "
                "new optimizer."
            )
        self._asked = asked

    @property
    def groups(self) -> Patterns | None:
        """Name of a group to the pattern of its variables' paths."""
        return self._groups

    @property
    def ledger(self) -> ledger_lib.PrivacyLedger | LedgerOfChief | None:
        """Where rounds are recorded; `None` after loading, until it is set."""
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: ledger_lib.PrivacyLedger | LedgerOfChief) -> None:
        if not isinstance(ledger, ledger_lib.PrivacyLedger | LedgerOfChief):
            raise TypeError(
                "`ledger` must be a PrivacyLedger. "
                f"Received: ledger={ledger!r}."
            )
        if self.is_recording:
            raise PrivateTrainingError(
                "`ledger` must not be changed while a training records in it."
            )
        if self._state is not None:
            self._state.bind(ledger.header)
        self._ledger = ledger

    def required_ledger(self) -> ledger_lib.PrivacyLedger | LedgerOfChief:
        """Returns the ledger.

        Raises:
            PrivateTrainingError: The optimizer was loaded from a file, which
                holds no ledger, and was not given one since.
        """
        if self._ledger is None:
            raise PrivateTrainingError(
                "A private optimizer that was loaded from a file must be given "
                "its ledger before it trains. Set optimizer.ledger = "
                'keras_dp.PrivacyLedger.open("run.ledger").'
            )
        return self._ledger

    def resolve_groups(self, model: keras.Model) -> None:
        """Matches `groups` with the variables of a built model."""
        if self.groups is not None and self._resolved is None:
            self._resolved = group_variables(model, self.groups)

    @override
    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        header = None if self._ledger is None else self._ledger.header
        # Seeds of their own on replicas would be noise of their own.
        with self._distribution_strategy.scope():
            self.inner.build(variables)
            self._state = DrawnState(
                self._asked, self._seed, header, self.add_variable
            )
            super().build(variables)

    # What a private model does with it, in this order.

    def planned_round(
        self,
        sampling: ledger_lib.SamplingEvent,
        *,
        seeded: bool,
        gradient_bound_factor: int = 1,
    ) -> ledger_lib.Round:
        """Returns what the next release will be, for the ledger to cover.

        Args:
            sampling: How the sample is drawn.
            seeded: Whether the caller chose the seed of the draw.
            gradient_bound_factor: See `RoundQueries.ledger_events`.

        Raises:
            ValueError: A clip is so small that float32 cannot enforce it.
        """
        event = self._asked.planned_event(self._built_state.read())
        queries = self._asked.ledger_events(event, gradient_bound_factor)
        for query in queries:
            bound = getattr(query, "l2_norm_bound", 1.0)
            if 0 < bound < _SMALLEST_CLIP:
                raise ValueError(
                    f"`l2_norm_clip` must be 0 or >= {_SMALLEST_CLIP} for "
                    "gradients, whose squared norms are computed in float32. "
                    f"Received: l2_norm_clip={bound!r}."
                )
        seeded = seeded or self._seed is not None or self._asked.seeded
        return ledger_lib.Round(sampling, queries, seeded=seeded)

    def initial_sample(
        self, variables: list[keras.Variable], beside: Mapping[str, Any]
    ) -> Any:
        """Returns the sample state before the first record of a round.

        Args:
            variables: What is trained.
            beside: Template of a record of each query beside the gradients'.
        """
        return self._asked.initial_sample(self.templates(variables, beside))

    def templates(
        self, variables: list[keras.Variable], beside: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns what a record of each query looks like."""
        specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
        return {GRADIENTS: self._grouped(variables, specs), **beside}

    def accumulate(
        self,
        sample: Any,
        variables: list[keras.Variable],
        gradients: Asked,
        beside: Mapping[str, Asked],
    ) -> Any:
        """Returns the sample state with a physical batch of records added."""
        records = self._grouped(variables, gradients.records)
        asked = {GRADIENTS: gradients._replace(records=records), **beside}
        return self._asked.accumulate(self._built_state.read(), sample, asked)

    def release(
        self,
        sample: Any,
        variables: list[keras.Variable],
        penalties: list[tf.Tensor | None],
    ) -> tuple[Any, Mapping[str, Any]]:
        """Noises the sums, updates the variables, and returns the event.

        Args:
            sample: The state of the finished sample.
            variables: What is trained.
            penalties: Gradient of each variable's weight penalty, which
                depends on no data and is added after the noise.

        Returns:
            The event, and the answer of each query.
        """
        result = self._asked.release(sample, self._built_state.read())
        self._built_state.assign(result.global_state)
        # A step that fails must not leave the seed that it drew with.
        with tf.control_dependencies(tf.nest.flatten(self._built_state.read())):
            noised = tf.nest.map_structure(tf.identity, result.value[GRADIENTS])
        if self.groups is not None:
            noised = self._matched_groups.join(variables, noised)
        gradients = [
            tf.cast(answer, variable.dtype)
            + (0 if penalty is None else tf.cast(penalty, variable.dtype))
            for answer, penalty, variable in zip(
                noised, penalties, variables, strict=True
            )
        ]
        with already_summed(self.inner):
            self.inner.apply(gradients, variables)
        return result.event, result.value

    def public_metrics(self) -> dict[str, tf.Tensor]:
        """Returns the public scalars of the queries' state, by name."""
        return self._asked.metrics(self._built_state.read())

    def _grouped(self, variables: list[keras.Variable], parts: Any) -> Any:
        if self.groups is None:
            return list(parts)
        return self._matched_groups.split(variables, list(parts))

    @property
    def state_variables(self) -> list[Any]:
        """Those of the queries' state, seeds included."""
        return self._built_state.variables

    @property
    def _matched_groups(self) -> VariableGroups:
        if self._resolved is None:
            raise PrivateTrainingError(
                "`groups` must be matched with a model first. Train with "
                "keras_dp.PrivateModel, or call resolve_groups(model)."
            )
        return self._resolved

    @property
    def _built_state(self) -> DrawnState:
        if self._state is None:
            raise PrivateTrainingError(
                "A private optimizer must be built before it is used. Call "
                "build(model.trainable_variables)."
            )
        return self._state

    @override
    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        groups: Any = self.groups
        if groups is not None:
            groups = {g: None if t is ... else t for g, t in groups.items()}
        return {
            "name": self.name,
            "inner": serialize(self.inner),
            "query": serialize(self.query),
            "groups": groups,
        }

    @classmethod
    @override
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None
    ) -> Self:
        """Returns the optimizer without its ledger, which no file holds."""
        inner, query = (
            keras.saving.deserialize_keras_object(
                config[key], custom_objects=custom_objects
            )
            for key in ("inner", "query")
        )
        optimizer = cls.__new__(cls)
        optimizer._configure(
            inner, query, patterns_from(config["groups"]), None, config["name"]
        )
        return optimizer
