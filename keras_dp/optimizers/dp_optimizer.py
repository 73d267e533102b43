"""Keras optimizers that take private answers, and only those."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeAlias

import keras
import tensorflow as tf
from absl import logging

from keras_dp import _check
from keras_dp import ledger as ledger_lib
from keras_dp._override import override
from keras_dp.dp_queries import DPQuery
from keras_dp.errors import PrivateTrainingError
from keras_dp.keras_internals import strategy_of
from keras_dp.optimizers.drawn_state import DrawnState
from keras_dp.optimizers.groups import (
    Patterns,
    VariableGroups,
    group_variables,
    patterns_from,
)
from keras_dp.optimizers.inner_optimizer import (
    WrappingOptimizer,
    apply_once,
    check_inner,
    take_averaging,
)
from keras_dp.optimizers.private_round import (
    Answers,
    Event,
    PrivateRound,
    Released,
    Sample,
    State,
)

# As Keras takes it: a number, a schedule, or a function without arguments.
LearningRate: TypeAlias = (
    float | keras.optimizers.schedules.LearningRateSchedule | Callable[[], Any]
)
# In float32, the squares of numbers below 1e-19 are 0. Smaller clips than this
# are too near to it.
_SMALLEST_CLIP = 1e-12


class LedgerOfChief:
    """Stands for the ledger in the workers that are not the chief.

    In a cluster, only the chief writes the ledger. Every other worker passes
    this object to its optimizer. Training with it is refused in a process that
    is no such worker.

    Attributes:
        header: The header of the chief's ledger.

    >>> ledger = ledger_lib.PrivacyLedger.in_memory(dataset="doc")
    >>> LedgerOfChief(ledger.header).header.unit
    'example'
    """

    def __init__(self, header: ledger_lib.Header) -> None:
        self.header = header


@keras.saving.register_keras_serializable(package="keras_dp")
class DPOptimizer(WrappingOptimizer):
    """Updates a model by a query's noised answers instead of gradients.

    Use it with `PrivateModel`, which passes per-example gradients to `query`.
    An ordinary model passes gradients that are summed over the batch, and the
    optimizer refuses these. The learning rate, schedules, momentum, weight
    decay and averages are those of `inner`. They use noised answers only, so
    they cost no privacy.

    Guarantee: if `PrivateModel` trains with it, every update is a function of
    the weights, earlier updates and noised answers, and the ledger recorded the
    event of each answer before it was computed.

    Attributes:
        inner: A Keras optimizer without gradient accumulation and without loss
            scaling.
        query: The mechanism. Its record is the list of the gradients of one
            example, in the order of `model.trainable_variables`. With `groups`,
            it is a dict with such a list for each group.
        ledger: The ledger in which every round is recorded.
        groups: A dict from the name of each group to the pattern of the paths
            of its variables; see `keras_dp.optimizers.group_variables`.
        seed: An integer that makes the noise reproducible inside
            `keras_dp.noise.reproducible()`, for tests. Anywhere else the
            operating system gives the key of the noise. Rounds are marked
            `seeded` in both cases.

    Raises:
        TypeError: `inner`, `query`, `ledger`, `groups` or `seed` is of another
            kind, or `inner` is a `LossScaleOptimizer`.
        ValueError: `inner` accumulates gradients or has a `loss_scale_factor`,
            or `seed` is negative.

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
        _check_ledger(ledger)
        self._configure(inner, query, groups, seed, name, ledger)

    def _configure(
        self,
        inner: keras.optimizers.Optimizer,
        query: DPQuery,
        groups: Patterns | VariableGroups | None,
        seed: int | None,
        name: str | None,
        ledger: ledger_lib.PrivacyLedger | LedgerOfChief | None = None,
    ) -> None:
        check_inner(inner)
        if not isinstance(query, DPQuery):
            raise TypeError(
                f"`query` must be a DPQuery. Received: query={query!r}. Take "
                "GaussianAverageQuery(l2_norm_clip, noise_multiplier=..., "
                "denominator=...), for instance."
            )
        if not isinstance(groups, Mapping | VariableGroups | None):
            raise TypeError(
                "`groups` must be a dict from names to patterns, "
                f"VariableGroups or None. Received: groups={groups!r}. Pass "
                'groups={"head": "head", "rest": ...}, for instance.'
            )
        if seed is not None:
            _check.integer_at_least(0, seed=seed)
        self._wrap(inner, name or f"dp_{inner.name}")
        self._query = query
        resolved = groups if isinstance(groups, VariableGroups) else None
        self._matched: VariableGroups | None = resolved
        self._groups = resolved.patterns if resolved else groups
        self._seed = seed
        self.is_recording = False
        self._ledger = ledger
        self._round: PrivateRound | None = None
        self._state: DrawnState | None = None

    @property
    def query(self) -> DPQuery:
        """The query that answers the gradients."""
        return self._query

    @property
    def groups(self) -> Patterns | None:
        """The pattern of the variables' paths, by name of the group."""
        return self._groups

    @property
    def ledger(self) -> ledger_lib.PrivacyLedger | LedgerOfChief | None:
        """The ledger in which every round is recorded.

        It is `None` after loading from a file, until you set it. It cannot be
        set while a training records in it.
        """
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: ledger_lib.PrivacyLedger | LedgerOfChief) -> None:
        _check_ledger(ledger)
        if self.is_recording:
            raise PrivateTrainingError(
                "`ledger` must not be changed while a training records in it. "
                "Set it before or after the training."
            )
        self._ledger = ledger

    @override
    def __repr__(self) -> str:
        seed = "" if self._seed is None else f", seed={self._seed!r}"
        groups = "" if self._groups is None else f", groups={self._groups!r}"
        noise = getattr(self._query, "noise_multiplier", None)
        noise = "" if noise is None else f", noise_multiplier={noise:.4g}"
        return (
            f"<{type(self).__name__} {type(self._inner).__name__}, "
            f"query={self._query!r}{noise}{groups}{seed}, "
            f"ledger={self._ledger!r}>"
        )

    def required_ledger(self) -> ledger_lib.PrivacyLedger | LedgerOfChief:
        """Returns the ledger.

        Raises:
            PrivateTrainingError: The optimizer was loaded from a file, which
                holds no ledger, and `ledger` was not set since.
        """
        if self._ledger is None:
            raise PrivateTrainingError(
                "A private optimizer that was loaded from a file must be given "
                "its ledger before it trains. Set optimizer.ledger = "
                'keras_dp.PrivacyLedger.open("run.ledger").'
            )
        return self._ledger

    def check_side_queries(self, side_queries: Mapping[str, DPQuery]) -> None:
        """Raises if the optimizer was built for other queries.

        Args:
            side_queries: The queries besides that of the gradients, by name.

        Raises:
            PrivateTrainingError: The optimizer was built for other queries, and
                holds their state.
        """
        if self._round is None:
            return
        asked = PrivateRound.of(self.query, side_queries, self._round.groups)
        if asked != self._round:
            raise PrivateTrainingError(
                "An optimizer that was built must not be asked for something "
                f"else. Received: {sorted(asked.queries)!r}, where it was "
                f"built for {sorted(self._round.queries)!r}. Compile with a "
                "new optimizer."
            )

    @override
    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        with strategy_of(self).scope():
            self.inner.build(variables)
            # It may have made optimizers of its own.
            check_inner(self.inner)
            for name, value in take_averaging(self.inner).items():
                setattr(self, name, value)
            super().build(variables)

    def build_round(
        self, model: keras.Model, side_queries: Mapping[str, DPQuery]
    ) -> None:
        """Creates the state of all queries, once.

        Args:
            model: A built model, whose variables `groups` must match.
            side_queries: The queries besides that of the gradients.

        Raises:
            PrivateTrainingError: The optimizer was built for other queries.
            ValueError: `groups` do not match the variables.
        """
        self.check_side_queries(side_queries)
        if self._round is not None:
            return
        self.build(model.trainable_variables)
        if self.groups is not None and self._matched is None:
            self._matched = group_variables(model, self.groups)
        round_ = PrivateRound.of(self.query, side_queries, self._matched)
        # If each replica had its own seeds, each would draw its own noise.
        with strategy_of(self).scope():
            self._state = DrawnState(round_, self._seed, self.add_variable)
        self._round = round_

    # A private model calls these, in this order.

    def plan(self) -> Event:
        """Returns the event of the next release, by name of the query.

        If the state was restored from an optimizer with other queries, it
        starts anew: the noise and the clip are always those of `query`.
        """
        if self._built_state.drop_other_queries():
            logging.warning(
                "The state that was restored is that of other queries, with "
                "another noise or clip, for instance. Its numbers are not "
                "used: training goes on with those of %r.",
                self.query,
            )
        return self.round.plan(self.read_state())

    def planned_round(
        self,
        event: Event,
        sampling: ledger_lib.SamplingEvent,
        *,
        seeded: bool,
        gradient_bound_factor: int = 1,
    ) -> ledger_lib.Round:
        """Returns the next round, to be recorded in the ledger before it runs.

        Args:
            event: The result of `plan`.
            sampling: How the sample is drawn.
            seeded: Whether the caller chose the seed of the draw.
            gradient_bound_factor: See `PrivateRound.ledger_events`.

        Returns:
            The round, which is not recorded yet.

        Raises:
            ValueError: A clip is so small that float32 may not enforce it.
        """
        queries = self.round.ledger_events(event, gradient_bound_factor)
        for query in queries:
            bound = getattr(query, "l2_norm_bound", 1.0)
            if 0 < bound < _SMALLEST_CLIP:
                raise ValueError(
                    f"`l2_norm_clip` must be 0 or >= {_SMALLEST_CLIP} for "
                    "gradients, whose squared norms are computed in float32. "
                    f"Received: l2_norm_clip={bound!r}. Use a larger clip."
                )
        seeded = seeded or self._seed is not None
        return ledger_lib.Round(sampling, queries, seeded=seeded)

    def release(
        self,
        sample: Sample,
        variables: list[keras.Variable],
        penalties: list[tf.Tensor | None],
        planned: Event,
        answer: Callable[[Sample, State, Event], Released] | None = None,
    ) -> tuple[Event, Answers]:
        """Adds noise to the sums, updates the variables, and returns the event.

        Guarantee: as in `PrivateRound.release`. If the event is not the planned
        one, all answers are 0.

        Args:
            sample: The state of the finished sample.
            variables: The variables that are trained.
            penalties: The gradient of each variable's weight penalty, or
                `None`. It depends on no data, and is added after the noise.
            planned: The result of `plan`.
            answer: `PrivateRound.release` of these variables, by default that
                of `round`.

        Returns:
            The event, and the answer of each query.
        """
        state = self._built_state
        before = state.read()
        if answer is None:
            released = self.round.release(sample, before, variables, planned)
        else:
            released = answer(sample, before, planned)
        state.assign(released.global_state)
        # The new seed is stored first. If the step then fails, the seed of this
        # round is not used again.
        with tf.control_dependencies(keras.tree.flatten(state.read())):
            noised = keras.tree.map_structure(tf.identity, released.gradients)
        gradients = [
            tf.cast(answer, variable.dtype)
            if penalty is None
            else tf.cast(answer, variable.dtype)
            + tf.cast(penalty, variable.dtype)
            for answer, penalty, variable in zip(
                noised, penalties, variables, strict=True
            )
        ]
        apply_once(self.inner, gradients, variables)
        self._count_and_average()
        return released.event, released.answers

    def read_state(self) -> State:
        """Returns the global state of all queries as tensors."""
        return self._built_state.read()

    def public_metrics(self) -> dict[str, tf.Tensor]:
        """Returns the public scalars of the queries' state, by name."""
        return self.round.metrics(self.read_state())

    @property
    def round(self) -> PrivateRound:
        """The queries of each round, and how they are answered.

        Raises:
            PrivateTrainingError: The optimizer is not built.
        """
        if self._round is None:
            raise _not_built()
        return self._round

    @property
    def seed(self) -> int | None:
        """The seed that the caller chose, for tests."""
        return self._seed

    def state_is_made_in(self, strategy: tf.distribute.Strategy) -> bool:
        """Whether the state of the queries was created under a strategy.

        Only then its replicas have the same state. The method does not return
        the variables, because seeds are among them. A seed that is set back
        repeats its noise.
        """
        for variable in self._built_state.variables:
            value = getattr(variable, "value", variable)
            if not isinstance(value, tf.Variable):
                value = variable
            if not strategy.extended.variable_created_in_scope(value):
                return False
        return True

    @property
    def _built_state(self) -> DrawnState:
        if self._state is None:
            raise _not_built()
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
            "use_ema": self.use_ema,
            "ema_momentum": self.ema_momentum,
            "ema_overwrite_frequency": self.ema_overwrite_frequency,
        }

    @classmethod
    @override
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None
    ) -> Self:
        """Returns the optimizer. No file has its ledger or seed."""
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
        optimizer.use_ema = config["use_ema"]
        optimizer.ema_momentum = config["ema_momentum"]
        optimizer.ema_overwrite_frequency = config["ema_overwrite_frequency"]
        return optimizer


def _check_ledger(ledger: Any) -> None:
    if not isinstance(ledger, ledger_lib.PrivacyLedger | LedgerOfChief):
        raise TypeError(
            "`ledger` must be a PrivacyLedger, for every round is recorded "
            f"in it. Received: ledger={_check.shown(ledger)}. Open one "
            'with keras_dp.PrivacyLedger.open("run.ledger", dataset="...").'
        )


def _not_built() -> PrivateTrainingError:
    return PrivateTrainingError(
        "A private optimizer must be built before it is used. Train with "
        "keras_dp.PrivateModel, which builds it."
    )


class _AroundNew(DPOptimizer):
    """A `DPOptimizer` around a new Keras optimizer of one kind."""

    _inner_kind: ClassVar[type[keras.optimizers.Optimizer]]

    def __init__(
        self,
        learning_rate: LearningRate | None = None,
        *,
        query: DPQuery,
        ledger: ledger_lib.PrivacyLedger,
        groups: Patterns | VariableGroups | None = None,
        seed: int | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        if learning_rate is not None:
            options["learning_rate"] = learning_rate
        super().__init__(
            self._inner_kind(**options),
            query=query,
            ledger=ledger,
            groups=groups,
            seed=seed,
            name=name,
        )


@keras.saving.register_keras_serializable(package="keras_dp")
class DPSGD(_AroundNew):
    """A `DPOptimizer` around a new `keras.optimizers.SGD`.

    It takes the options of SGD, and those of `DPOptimizer`.

    >>> import keras_dp
    >>> query = keras_dp.GaussianAverageQuery(1.0, 1.1, denominator=256)
    >>> ledger = keras_dp.PrivacyLedger.in_memory(dataset="doc")
    >>> DPSGD(0.1, momentum=0.9, query=query, ledger=ledger).inner.momentum
    0.9
    """

    _inner_kind = keras.optimizers.SGD


@keras.saving.register_keras_serializable(package="keras_dp")
class DPAdam(_AroundNew):
    """A `DPOptimizer` around a new `keras.optimizers.Adam`.

    It takes the options of Adam, and those of `DPOptimizer`.

    >>> import keras_dp
    >>> query = keras_dp.GaussianAverageQuery(1.0, 1.1, denominator=256)
    >>> ledger = keras_dp.PrivacyLedger.in_memory(dataset="doc")
    >>> DPAdam(1e-3, beta_1=0.8, query=query, ledger=ledger).inner.beta_1
    0.8
    """

    _inner_kind = keras.optimizers.Adam
