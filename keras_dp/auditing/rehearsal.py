"""Runs rounds of a training for audits, and then undoes them."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from keras_dp._override import override
from keras_dp.auditing.observed_round import ObservedRound
from keras_dp.dp_queries import DPQuery, Mechanism
from keras_dp.ledger import CountedRound, PrivacyLedger, SumQueryEvent
from keras_dp.optimizers.private_round import GRADIENTS, Event
from keras_dp.spending.run import new_run
from keras_dp.training.data.data_adapter import DataAdapter, PhysicalStep
from keras_dp.training.devices.workers import FitTerms
from keras_dp.training.loop import TrainingLoop
from keras_dp.training.preparation import Preparation
from keras_dp.training.private_model import PrivateModel
from keras_dp.training.step.batch_computation import BatchKind
from keras_dp.training.step.layer_states import LayerSeeds
from keras_dp.training.step.step_parts import StepParts
from keras_dp.training.step.training_step import TrainingStep

# The number of examples by default in `PrivateModel`.
_SELF_CHECK = 2


class Observation(NamedTuple):
    """Everything that a round did. All of it is secret.

    Attributes:
        mechanisms: Each mechanism, with its sum before noise and its state.
        events: The events of the round in the ledger; none without a round.
        variables: A digest of each variable, and of each tensor in the state of
            the queries, after the round, by name.
        metric_variables: The names of the variables of Keras's own metrics.
        logs: The numbers that `fit` would show.
        rounds: The rounds in the ledger.
        was_covered: Whether the ledger held the round before it ran.
        traces: The number of traces of the step so far.
    """

    mechanisms: list[Mechanism]
    events: tuple[SumQueryEvent, ...]
    variables: dict[str, str]
    metric_variables: frozenset[str]
    logs: dict[str, float]
    rounds: tuple[CountedRound, ...]
    was_covered: bool
    traces: int


class Rehearsal:
    """Runs rounds of a private model as `fit` does, and undoes them.

    It uses the step, the loop, the recorder and the queries of `fit`, and a
    ledger in memory.

    Guarantee: at the end the weights, the state of the optimizer and of its
    queries, the metrics and the ledger have their values from before. The seeds
    of layers are new. The seeds of noise are the same as before, so that the
    training draws the noise that was drawn here. For this reason the content
    of an `Observation` must not become known.
    """

    def __init__(self, private_model: PrivateModel, ready: Preparation) -> None:
        """Starts without a step. `begun` makes it.

        Args:
            private_model: The private model, compiled.
            ready: The terms of its training.
        """
        self._model = private_model
        self._ready = ready._replace(
            adapter=_GivenBatches(ready.adapter.source)
        )
        self._step: _WatchedStep

    @contextlib.contextmanager
    def begun(self, whole: PhysicalStep, batch: PhysicalStep) -> Iterator[Self]:
        """Builds and checks the model as `fit` does. Undoes rounds at the end.

        A model that was not built stays built.

        Args:
            whole: A physical batch as in training. The engine is checked on
                it, because a model may treat large batches in another way.
            batch: A batch with the shapes of all batches that `run` gets.

        Yields:
            The rehearsal itself.

        Raises:
            GradientCheckError: As in `fit`.
            UnsupportedLayerError: As in `fit`.
        """
        model = self._model
        model._built_step(batch)
        optimizer = model.optimizer
        self._observed = ObservedRound(
            optimizer.round.queries, optimizer.round.groups
        )
        self._variables = _variables(model)
        self._values = [tf.identity(each) for each in self._variables]
        self._state = tf.nest.map_structure(tf.identity, optimizer.read_state())
        self._header = optimizer.required_ledger().header
        own, seeds = optimizer.ledger, LayerSeeds(model.model, None)
        try:
            parts = model.step_parts()
            options = dataclasses.replace(
                parts.options, self_check_examples=_SELF_CHECK
            )
            if parts.local is not None:
                options = parts.options
            self._step = _WatchedStep(
                dataclasses.replace(
                    parts, round=self._observed, options=options
                ),
                self,
            )
            self._step.check(whole)
            yield self
        finally:
            optimizer.ledger = own
            self._rewind()
            seeds.renew(0)

    def _rewind(self) -> None:
        """Sets everything that a round moves to its value at the start."""
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)
        # The seeds as well: no other part of the library sets them back.
        self._model.optimizer._built_state.assign(self._state)

    def run(
        self,
        *batches: PhysicalStep,
        repeats_answers: bool = False,
        loose: bool = False,
    ) -> Observation:
        """Runs one round from the state at the start.

        Args:
            *batches: The whole sample, in one physical batch or several.
            repeats_answers: Whether the round repeats the answers of the last
                round, whatever its sums are.
            loose: Whether the clip is too large for ordinary records, in
                queries that have the clip in their state.

        Returns:
            The observation of the round.
        """
        model, optimizer = self._model, self._model.optimizer
        self._rewind()
        self._ledger = self._new_ledger()
        optimizer.ledger = self._ledger
        self._observed.repeats.assign(repeats_answers)
        self._observed.loosen(loose=loose)
        state = optimizer.read_state()
        model.reset_metrics()
        self.was_covered = False
        loop = _RehearsedLoop(
            self._ready,
            FitTerms(1, {"steps_per_epoch": 1}, 1),
            new_run(self._ledger, most=1),
            lambda _: self._step,
        )
        last = len(batches) - 1
        parts = (
            each._replace(ends_sample=place == last)
            for place, each in enumerate(batches)
        )
        with loop.recording():
            loop.run(parts, rounds=1)
        sums = self._observed.sums.read()
        queries = optimizer.round.queries
        mechanisms = [
            mechanism
            for name, query in queries.items()
            for mechanism in query.mechanisms(sums[name], state[name])
        ]
        rounds = self._ledger.rounds
        events = rounds[-1].round.queries if rounds else ()
        leaves = enumerate(tf.nest.flatten(optimizer.read_state()))
        return Observation(
            mechanisms,
            events,
            {
                **{_name(each): _digest(each) for each in self._variables},
                **{f"state {i} of the queries": _digest(x) for i, x in leaves},
            },
            frozenset(map(_name, model.metrics_variables)),
            {name: float(value) for name, value in loop.logs.items()},
            rounds,
            self.was_covered,
            self._step.trace_count,
        )

    @property
    def shows_raw_metrics(self) -> bool:
        """Whether `fit` shows metrics of the training data without noise."""
        return self._model._side_queries.metrics is None

    def asked(self) -> list[tuple[DPQuery, Any, Any]]:
        """Returns each query with its last sum and its state at the start.

        It undoes the last round.
        """
        self._rewind()
        state = self._state
        sums = self._observed.sums.read()
        return [
            (query, sums[name], state[name])
            for name, query in self._observed.queries.items()
        ]

    def answers(self) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns the answers of the last round, beside those of its queries.

        It undoes the last round. If that repeated answers of another round, the
        two differ.
        """
        released = self._observed.released.read()
        given = {
            name: query.get_noised_result(sample, state).value
            for (name, query), (_, sample, state) in zip(
                self._observed.queries.items(), self.asked(), strict=True
            )
        }
        gradients = given[GRADIENTS]
        if self._observed.groups is not None:
            variables = self._model.model.trainable_variables
            gradients = self._observed.groups.join(variables, gradients)
        pairs = zip(
            tf.nest.flatten((released.answers, released.gradients)),
            tf.nest.flatten((given, gradients)),
            strict=True,
        )
        return list(pairs)

    @property
    def covers(self) -> bool:
        """Whether the ledger of the last round holds it by now."""
        return len(self._ledger) > 0

    def _new_ledger(self) -> PrivacyLedger:
        header = self._header
        return PrivacyLedger.in_memory(
            dataset=header.dataset,
            unit=header.unit,
            rows_per_unit=header.rows_per_unit,
        )


class _RehearsedLoop(TrainingLoop):
    """Leaves the seeds of layers as they are, so that rounds compare."""

    @override
    def renew_seeds(self) -> None:
        pass

    @override
    def _begin(self, batch: PhysicalStep) -> None:
        pass


class _GivenBatches(DataAdapter):
    """Hands on physical batches that were made already."""

    @override
    def step_from(self, data: PhysicalStep) -> PhysicalStep:
        return data


class _WatchedStep(TrainingStep):
    """Notes whether the ledger covers each round before it runs."""

    def __init__(self, parts: StepParts, rehearsal: Rehearsal) -> None:
        super().__init__(parts)
        self._rehearsal, self._is_checked = rehearsal, False

    @override
    def check(self, step: PhysicalStep) -> None:
        """Checks the engine on the first batch, of which others are parts."""
        if not self._is_checked:
            super().check(step)
        self._is_checked = True

    @override
    def run(
        self,
        step: PhysicalStep,
        kind: BatchKind,
        planned: Event,
        *,
        is_first: bool = True,
    ) -> tuple[Mapping[str, Any], Event | None]:
        self._rehearsal.was_covered = self._rehearsal.covers
        return super().run(step, kind, planned, is_first=is_first)


def _variables(model: PrivateModel) -> list[Any]:
    """Returns the variables that a round may move, each once."""
    found = [
        *model.variables,
        *model.metrics_variables,
        *(v for metric in model.metrics for v in metric.variables),
        *model._side_queries.variables,
        *model.optimizer.variables,
    ]
    return list({id(variable): variable for variable in found}.values())


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))


def _digest(variable: Any) -> str:
    value = np.asarray(variable)
    return hashlib.sha256(value.tobytes()).hexdigest()
