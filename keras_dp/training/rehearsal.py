"""Rounds of a training that are looked at, and then undone."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf
from typing_extensions import override

from keras_dp.dp_queries import DPQuery, Mechanism
from keras_dp.ledger import CountedRound, PrivacyLedger, SumQueryEvent
from keras_dp.optimizers.observed_round import ObservedRound
from keras_dp.training.batch_computation import BatchKind
from keras_dp.training.data_adapter import DataAdapter, PhysicalStep
from keras_dp.training.devices.replicas import Replicas
from keras_dp.training.devices.workers import FitTerms
from keras_dp.training.layer_seeds import LayerSeeds
from keras_dp.training.loop import TrainingLoop
from keras_dp.training.private_model import PrivateModel
from keras_dp.training.run import TrainingRun
from keras_dp.training.step import TrainingStep

# As many examples are compared with brute force as `PrivateModel` does.
_SELF_CHECK = 2


class Observation(NamedTuple):
    """Everything that a round did. All of it is secret.

    Attributes:
        mechanisms: Each mechanism, with its sum before noise and its state.
        events: The event of each of them in the ledger.
        variables: Digest of every variable after the round, by name.
        metric_variables: Names of those that Keras's own metrics are made of.
        logs: The numbers that `fit` would show.
        rounds: The rounds in the ledger.
        was_covered: Whether the ledger held the round before it ran.
        traces: How often the step was traced so far.
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
    """Runs rounds of a private model, as `fit` does, and undoes them.

    The step, the loop, the recorder and the queries are those of `fit`; the
    ledger is one in memory.

    Guarantee: at the end weights, states, metrics and the ledger are what they
    were. Seeds of noise are put back too: none of their noise must become
    known from here, and no answer leaves an `Observation`.
    """

    def __init__(self, private_model: PrivateModel, adapter: DataAdapter):
        """Prepares nothing yet; use it in a `with` statement.

        Args:
            private_model: Compiled.
            adapter: Where its samples come from.
        """
        self._model, self._adapter = private_model, adapter
        self._stack = contextlib.ExitStack()
        self._step: _WatchedStep

    @contextlib.contextmanager
    def begun(self, whole: PhysicalStep, batch: PhysicalStep) -> Iterator[Self]:
        """Builds and checks the model as `fit` does; undoes all at the end.

        Args:
            whole: A physical batch as in training. The engine is checked on
                it: a model may treat large batches in another way.
            batch: It has the shapes of all batches to come.
        """
        model = self._model
        model._built_step(batch)
        optimizer = model.optimizer
        self._observed = ObservedRound(
            optimizer.round.queries, optimizer.round.groups
        )
        self._variables = _variables(model)
        values = [tf.identity(variable) for variable in self._variables]

        def rewind() -> None:
            for variable, value in zip(self._variables, values, strict=True):
                variable.assign(value)

        seeds = LayerSeeds(model.model, None)
        with optimizer.rehearsing(
            self._new_ledger(), self._observed
        ) as rewind_optimizer:
            self._rewinds = rewind, rewind_optimizer
            parts = model.step_parts()
            options = dataclasses.replace(
                parts.options, self_check_examples=_SELF_CHECK
            )
            if parts.local is not None:
                options = parts.options
            self._step = _WatchedStep(
                dataclasses.replace(parts, options=options), self
            )
            self._step.check(whole)
            try:
                yield self
            finally:
                rewind()
                seeds.renew(0)

    def run(
        self,
        *batches: PhysicalStep,
        repeats_answers: bool = False,
        loose: bool = False,
    ) -> Observation:
        """Returns what a round does, from the state at the start.

        Args:
            *batches: The whole sample, in one physical batch or several.
            repeats_answers: Whether the answers of the last round are given
                again, whatever the sums.
            loose: Whether no record is clipped, where the state of a query
                holds the clip.
        """
        model, optimizer = self._model, self._model.optimizer
        for rewind in self._rewinds:
            rewind()
        self._ledger = self._new_ledger()
        optimizer.ledger = self._ledger
        self._observed.repeats.assign(repeats_answers)
        self._observed.loosen(loose=loose)
        state = optimizer.read_state()
        model.reset_metrics()
        self.was_covered = False
        loop = _RehearsedLoop(
            _GivenBatches(self._adapter.source),
            optimizer,
            lambda _: self._step,
            _SameSeeds(model.model, None),
            Replicas(model.distribute_strategy),
            FitTerms(1, {"steps_per_epoch": 1}, 1),
            TrainingRun(self._ledger, most=1),
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
        digests = dict(enumerate(optimizer.state_digests()))
        return Observation(
            mechanisms,
            events,
            {
                **{
                    _name(variable): _digest(variable)
                    for variable in self._variables
                },
                **{_name(v): _digest(v) for v in optimizer.variables},
                **{f"state {i} of the queries": d for i, d in digests.items()},
            },
            frozenset(map(_name, model.metrics_variables)),
            {name: float(value) for name, value in loop.logs.items()},
            rounds,
            self.was_covered,
            self._step.trace_count,
        )

    @property
    def shows_raw_metrics(self) -> bool:
        """Whether `fit` shows metrics of the data without noise."""
        return self._model._side_queries.metrics is None

    def asked(self) -> list[tuple[DPQuery, Any, Any]]:
        """Returns each query, its last sum, and its state at the start."""
        for rewind in self._rewinds:
            rewind()
        state = self._model.optimizer.read_state()
        sums = self._observed.sums.read()
        return [
            (query, sums[name], state[name])
            for name, query in self._observed.queries.items()
        ]

    @property
    def covers(self) -> bool:
        """Whether the ledger holds a round by now."""
        return len(self._ledger) > 0

    def _new_ledger(self) -> PrivacyLedger:
        header = self._model.optimizer.required_ledger().header
        return PrivacyLedger.in_memory(
            dataset=header.dataset,
            unit=header.unit,
            generator=header.generator,
            rows_per_unit=header.rows_per_unit,
        )


class _RehearsedLoop(TrainingLoop):
    """Keeps seeds, and compares no ledger with the optimizer's rounds."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._seeds_are_new = True


class _GivenBatches(DataAdapter):
    """Hands on physical batches that were made already."""

    @override
    def step_from(self, data: Any) -> PhysicalStep:
        return data


class _SameSeeds(LayerSeeds):
    """Leaves the seeds of layers as they are, for rounds to be compared."""

    @override
    def renew(self, rounds: int) -> None:
        pass


class _WatchedStep(TrainingStep):
    """Notes whether the ledger covers a round when it runs."""

    def __init__(self, parts: Any, rehearsal: Rehearsal) -> None:
        super().__init__(parts)
        self._rehearsal = rehearsal

    @override
    def run(self, step: PhysicalStep, kind: BatchKind, planned: Any) -> Any:
        self._rehearsal.was_covered = self._rehearsal.covers
        return super().run(step, kind, planned)


def _variables(model: PrivateModel) -> list[Any]:
    """Returns the variables that a round may move, each once."""
    found = [
        *model.variables,
        *model.metrics_variables,
        *(v for metric in model.metrics for v in metric.variables),
        *model._side_queries.variables,
    ]
    return list({id(variable): variable for variable in found}.values())


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))


def _digest(variable: Any) -> str:
    value = np.asarray(variable)
    return hashlib.sha256(value.tobytes()).hexdigest()
