"""Phantoms in trainings whose noise is correlated over the rounds."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.special
import tensorflow as tf

from keras_dp._override import override
from keras_dp.accountants.arrays import Array
from keras_dp.auditing.phantom_round import PhantomRound, Phantoms
from keras_dp.dp_queries import CorrelatedSumQuery, DPQuery, NormalizedQuery
from keras_dp.dp_queries.correlated_sum_query import CorrelatedState
from keras_dp.ledger import Strategy
from keras_dp.optimizers.private_round import (
    GRADIENTS,
    Event,
    Released,
    Sample,
    State,
)


class CorrelatedPhantoms(Phantoms):
    """Phantoms whose answers of all rounds are weighed together.

    Every answer is kept: the memory is that of one float32 for each round and
    phantom.

    Attributes:
        classes: A phantom draws one of so many classes, which take turns.
        buffers: The noise has these buffers for the phantoms' coordinates.
    """

    def __init__(
        self,
        count: int,
        probability: float,
        most: int,
        draws: Iterator[npt.NDArray[np.int32]],
        query: CorrelatedSumQuery,
        classes: int,
    ) -> None:
        """Draws nothing yet.

        Args:
            count: The number of phantoms, >= 1.
            probability: With which a phantom takes part in a round of its
                class, in (0, 1]. Below 1 the strategy has at most as many bands
                as there are classes.
            most: The most phantoms that take part in one round.
            draws: See `Phantoms`.
            query: The query of the gradients, without a denominator.
            classes: See the attribute.
        """
        super().__init__(count, probability, most, draws)
        self._strategy, self.classes = query.strategy, classes
        self._answers = tf.Variable(
            tf.zeros([query.rounds, count]), trainable=False
        )
        self._rounds = tf.Variable(0, trainable=False)
        self._shift = tf.Variable(1.0, trainable=False, dtype=tf.float64)
        own = dataclasses.replace(query, record_specs=tf.TensorSpec([count]))
        (first,) = _buffers(own.initial_global_state())
        self.buffers = [tf.Variable(each, trainable=False) for each in first]

    @override
    def add_to_scores(self, answer: tf.Tensor, multiplier: tf.Tensor) -> None:
        row = tf.cast(answer, tf.float32)[tf.newaxis]
        self._answers.scatter_update(
            tf.IndexedSlices(row, tf.reshape(self._rounds, [1]))
        )
        self._shift.assign(1 / multiplier)
        self._rounds.assign_add(1)

    @override
    def log_ratios(self) -> Array:
        rounds = int(self._rounds)
        return log_ratios(
            np.asarray(self._answers)[:rounds],
            self._strategy,
            float(self._shift),
            self.classes,
            self.probability,
        )


def log_ratios(
    answers: npt.NDArray[np.float32],
    strategy: Strategy,
    shift: float,
    classes: int,
    probability: float,
) -> Array:
    """Returns the log likelihood ratio of phantoms by their first answers.

    C times the answers has independent noise. A phantom moves it by the columns
    of C of its rounds. Its class is not known: the ratio is the mean over the
    classes. With a probability below 1, the columns of two rounds of a class
    have no row in common, so that each round has a factor of its own.

    Args:
        answers: Shape `[rounds, phantoms]`, divided by the stddev of a draw.
        strategy: C.
        shift: The bound on a phantom, divided by the stddev of a draw.
        classes: As in `CyclicPoissonBatches`.
        probability: As in `CyclicPoissonBatches`.
    """
    rounds = len(answers)
    matrix = strategy.matrix(rounds)
    white = matrix @ answers
    found = []
    for first in range(min(classes, rounds)):
        columns = shift * matrix[:, first::classes]
        if probability == 1:
            columns = columns.sum(axis=1, keepdims=True)
        squares = np.square(columns).sum(axis=0)[:, np.newaxis]
        ratios = columns.T @ white - squares / 2
        if probability < 1:
            ratios = np.logaddexp(
                np.log1p(-probability), np.log(probability) + ratios
            )
        found.append(ratios.sum(axis=0))
    # Phantoms of other classes had no round yet.
    found += [np.zeros_like(found[0])] * (classes - len(found))
    return np.asarray(scipy.special.logsumexp(found, axis=0) - np.log(classes))


@dataclasses.dataclass(frozen=True, eq=False)
class CorrelatedPhantomRound(PhantomRound):
    """A round in which the noise of phantoms is that of the mechanism.

    The answers of phantoms are a leaf more of the record. Its draws are from
    the key of the round, and its buffers stand beside those of the gradients,
    while the round is released.
    """

    phantoms: CorrelatedPhantoms = dataclasses.field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        widened = _widened(self.queries[GRADIENTS], self.phantoms.count)
        queries: Mapping[str, DPQuery] = {**self.queries, GRADIENTS: widened}
        object.__setattr__(self, "queries", queries)

    @override
    def release(
        self,
        sample: Sample,
        state: State,
        variables: list[Any],
        planned: Event,
    ) -> Released:
        kept = [tf.convert_to_tensor(each) for each in self.phantoms.buffers]
        own = state[GRADIENTS]
        whole = _with_buffers(own, [*_buffers(own), kept])
        released = super().release(
            sample, {**state, GRADIENTS: whole}, variables, planned
        )
        *others, following = _buffers(released.global_state[GRADIENTS])
        for variable, value in zip(
            self.phantoms.buffers, following, strict=True
        ):
            variable.assign(value)
        after = _with_buffers(released.global_state[GRADIENTS], others)
        return released._replace(
            global_state={**released.global_state, GRADIENTS: after}
        )

    @override
    def _noise_of_answer(self, state: State, answers: Any) -> tf.Tensor:
        query: DPQuery = self.queries[GRADIENTS]
        denominator = 1.0
        while isinstance(query, NormalizedQuery):
            denominator *= query.denominator
            query = query.inner
        stddev = cast(CorrelatedSumQuery, query).stddev
        return tf.constant(stddev / denominator, tf.float64)


def _widened(query: DPQuery, count: int) -> DPQuery:
    """Returns the query of records with one leaf more."""
    if isinstance(query, NormalizedQuery):
        inner = _widened(query.inner, count)
        return dataclasses.replace(query, numerator_query=inner)
    asked = cast(CorrelatedSumQuery, query)
    specs = [*tf.nest.flatten(asked.record_specs), tf.TensorSpec([count])]
    return dataclasses.replace(asked, record_specs=specs)


def _buffers(state: CorrelatedState) -> list[list[tf.Tensor]]:
    return list(state.secret_mechanism.noise.buffers)


def _with_buffers(
    state: CorrelatedState, buffers: list[list[tf.Tensor]]
) -> CorrelatedState:
    mechanism = state.secret_mechanism
    noise = mechanism.noise._replace(buffers=buffers)
    return CorrelatedState(mechanism._replace(noise=noise))
