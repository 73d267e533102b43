"""A round of a private model as functions of its batches, and what is found."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp.dp_queries import Mechanism
from keras_dp.optimizers.private_round import Released, Sample, State
from keras_dp.training.data.batches import StepBatch
from keras_dp.training.private_model import PrivateModel
from keras_dp.training.step.batch_computation import BatchComputation
from keras_dp.training.step.engine_check import EngineCheck
from keras_dp.training.step.layer_states import LayerSeeds
from keras_dp.training.training import Training

# With a clip that is larger by this factor, ordinary records are not clipped.
_NO_CLIP = 1e6
# The number of examples by default in `PrivateModel`.
_SELF_CHECK = 2


class Observation(NamedTuple):
    """All that the batches of a sample lead to. It is secret.

    Attributes:
        mechanisms: Each mechanism, with its sum before noise and its state.
        moved: A digest of each variable, and of each tensor in the state of
            the queries, after a release of given answers, by name.
        shown: The numbers that `fit` would show.
    """

    mechanisms: list[Mechanism]
    moved: dict[str, str]
    shown: dict[str, float]


class AuditedRound:
    """Computes the round of a private model on any batches, from one state.

    It has the engine, the queries and the optimizer of `fit`. Every observation
    begins with the variables as they were at first, and the optimizer always
    gets the same answers: those to the batch of the audit. If two samples then
    lead to different variables, something in the sample reached them without
    passing through a query.

    Attributes:
        queries: Each query, with its sum over the batch and its state.
        planned: The round that the ledger would hold.
        keeps_to_plan: Whether the release has the event that was planned.
    """

    def __init__(
        self,
        private_model: PrivateModel,
        training: Training,
        whole: StepBatch,
        batch: StepBatch,
    ) -> None:
        """Builds and checks the model as `fit` does.

        The engine is checked on `whole`, a physical batch as in training,
        because a model may treat large batches in another way. All other
        batches must have the shapes of `batch`.
        """
        private_model._built_step(batch)
        self._rows = training.adapter.rows_of_record
        self._optimizer = optimizer = training.optimizer
        parts = private_model.step_parts()
        if parts.user_updates is None:
            parts = dataclasses.replace(parts, self_check_examples=_SELF_CHECK)
        self._computation = BatchComputation(parts)
        event = optimizer.plan()
        self._event, self._state = event, optimizer.read_state()
        moved = [
            *private_model.variables,
            *training.side_queries.variables,
            *optimizer.variables,
        ]
        self._variables = list({id(each): each for each in moved}.values())
        self._values = [tf.identity(each) for each in self._variables]
        EngineCheck(parts, self._computation).run(whole)
        self._accumulate, self._release = (
            self._accumulated,
            self._released_as_given,
        )
        if not parts.run_eagerly:
            self._accumulate = tf.function(
                self._accumulated,
                jit_compile=parts.jit_compile or None,
                autograph=False,
            )
            self._release = tf.function(
                self._released_as_given, autograph=False
            )
        sums = self._sums((batch,))
        self._answers: Released = optimizer.round.release(
            sums, self._state, self._computation.engine.variables, event
        )
        self._computation.release = lambda *_: self._answers
        self.keeps_to_plan = _equal(self._answers.event, event)
        self.queries = [
            (query, sums[name], self._state[name])
            for name, query in optimizer.round.queries.items()
        ]
        self.planned = training.planned(
            event, training.adapter.sampling_of(batch.pass_)
        )

    def observed(self, *batches: StepBatch, loose: bool = False) -> Observation:
        """Returns what the physical batches of one whole sample lead to.

        A clip in the state of a query may be `loose`: too large for ordinary
        records. Records that clipping makes equal then give different sums.
        """
        sums = self._sums(batches, loose=loose)
        shown = self._release(sums)
        leaves = enumerate(keras.tree.flatten(self._optimizer.read_state()))
        return Observation(
            [
                mechanism
                for name, query in self._optimizer.round.queries.items()
                for mechanism in query.mechanisms(sums[name], self._state[name])
            ],
            {
                **{_name(each): _digest(each) for each in self._variables},
                **{f"state {i} of the queries": _digest(x) for i, x in leaves},
            },
            {name: float(value) for name, value in shown.items()},
        )

    def _sums(
        self, batches: tuple[StepBatch, ...], *, loose: bool = False
    ) -> dict[str, Any]:
        self.rewind()
        state = _with_clips(self._state, _NO_CLIP) if loose else self._state
        sample = self._optimizer.round.initial_sample(
            self._computation.templates
        )
        for each in batches:
            sample = self._accumulate(state, sample, each.data, each.mask)
        return dict(sample)

    def _accumulated(
        self, state: State, sample: Sample, data: Any, mask: tf.Tensor
    ) -> Sample:
        _, sample = self._computation.accumulated(
            data, mask, self._rows, state, sample
        )
        return sample

    def _released_as_given(self, sums: Sample) -> dict[str, tf.Tensor]:
        _, values = self._computation.released(sums, self._event)
        return {**values, **self._optimizer.public_metrics()}

    def rewind(self) -> None:
        """Sets everything that a round moves to its value at the start."""
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)
        # The seeds as well: no other part of the library sets them back.
        self._optimizer._built_state.assign(self._state)


@contextlib.contextmanager
def audited(
    private_model: PrivateModel,
    training: Training,
    whole: StepBatch,
    batch: StepBatch,
) -> Iterator[AuditedRound]:
    """Yields the round of a private model, and puts all back at the end.

    Guarantee: at the end the weights, and the state of the optimizer and of its
    queries have their values from before. The seeds of layers are new. The
    seeds of noise are the same as before, so that the training draws the noise
    that was drawn here. For this reason an `Observation` must not become known.
    A model that was not built stays built.
    """
    round_ = AuditedRound(private_model, training, whole, batch)
    try:
        yield round_
    finally:
        round_.rewind()
        LayerSeeds(private_model.model, None).renew(0)


def _with_clips(state: Any, factor: float) -> Any:
    """Returns a state with its clips, at any depth, times a factor."""
    fields = getattr(state, "_fields", None)
    if fields is not None:
        return type(state)(
            **{
                name: part * tf.cast(factor, part.dtype)
                if name == "l2_norm_clip"
                else _with_clips(part, factor)
                for name, part in zip(fields, state, strict=True)
            }
        )
    if isinstance(state, Mapping):
        return {key: _with_clips(part, factor) for key, part in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_with_clips(part, factor) for part in state)
    return state


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))


def _digest(variable: Any) -> str:
    value = np.asarray(variable)
    return hashlib.sha256(value.tobytes()).hexdigest()


def _equal(one: Any, two: Any) -> bool:
    pairs = zip(keras.tree.flatten(one), keras.tree.flatten(two), strict=True)
    return all(bool(tf.reduce_all(a == b)) for a, b in pairs)


Question = Literal[
    "refusal", "sensitivity", "independence", "flow", "noise", "record", "draw"
]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One way in which a training departs from its ledger.

    Attributes:
        question: The question that was asked. "refusal": the library refuses to
            train the model. "sensitivity": a record moves a sum by more than
            its bound. "independence": a record changes the contributions of
            others. "flow": data change something without a query. "noise": the
            noise is not that of the ledger. "record": the ledger would hold
            another round than is released, or its rows were changed. "draw":
            samples are not those of the sampling event.
        where: The query, variable, metric or sampler.
        message: The observation, often with a remedy.
    """

    question: Question
    where: str
    message: str

    def __str__(self) -> str:
        return f"[{self.question}] {self.where}: {self.message}"


@dataclasses.dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `check`. It depends on the records of the check.

    Attributes:
        findings: The departures from the ledger. Each question and place has at
            most one.
        measured: Measurements, one line each, such as the largest move of each
            sum as a share of its bound.
        not_measured: Quantities that the check could not measure, one line
            each.
    """

    findings: tuple[Finding, ...]
    measured: tuple[str, ...]
    not_measured: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether there are no findings. This does not prove privacy."""
        return not self.findings

    def __str__(self) -> str:
        count = len(self.findings)
        head = (
            "No violation was found."
            if self.passed
            else f"{count} violation{'s' if count > 1 else ''}:"
        )
        lines = [head, *(f"  {each}" for each in self.findings)]
        lines += [f"Measured: {line}" for line in self.measured]
        lines += [f"Not measured: {line}" for line in self.not_measured]
        return "\n".join(lines)
