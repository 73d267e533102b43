"""How large the noised answers of a training are, beside their noise."""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp.dp_queries.dp_query import gaussian_variances
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.private_round import (
    GRADIENTS,
    Answers,
    PrivateRound,
    State,
)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sums over rounds, for each trained variable, in arrays `[variables]`.

    `coordinates` are the sizes of the variables, `answers` the squared norms of
    their noised answers, and `noise` the expected squared norms of the noise.
    """

    paths: tuple[str, ...]
    coordinates: np.ndarray
    rounds: int
    answers: np.ndarray
    noise: np.ndarray

    def since(self, before: "Sizes | None") -> "Sizes":
        """Returns the sums over the rounds after those of `before`."""
        if before is None:
            return self
        return dataclasses.replace(
            self,
            rounds=self.rounds - before.rounds,
            answers=self.answers - before.answers,
            noise=self.noise - before.noise,
        )


class AnswerSizes:
    """Adds up the sizes of answers, and those of their noise.

    It sees answers after their noise was added, and public numbers. So it costs
    no privacy, and its sums are public.
    """

    def __init__(
        self,
        round_: PrivateRound,
        variables: list[Any],
        strategy: tf.distribute.Strategy,
    ) -> None:
        self._round, self._variables = round_, variables
        self._coordinates = np.array([np.prod(v.shape) for v in variables])
        with strategy.scope():
            # Each replica has the answer of all, and sums of its own.
            self._rounds, self._sums = (
                tf.Variable(
                    start,
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
                for start in (
                    tf.zeros([], tf.int64),
                    tf.zeros([2, len(variables)], tf.float64),
                )
            )

    @classmethod
    def of(
        cls,
        optimizer: DPOptimizer,
        variables: list[Any],
        strategy: tf.distribute.Strategy,
    ) -> "AnswerSizes | None":
        """Returns sums for a training, `None` if its noise is not Gaussian."""
        query = optimizer.query
        template = optimizer.round.templates(variables, {})[GRADIENTS]
        state = query.initial_global_state()
        if gaussian_variances(query, state, template) is None:
            return None
        return cls(optimizer.round, variables, strategy)

    def add(self, state: State, answers: Answers) -> None:
        """Adds a round. The state is the one before the release."""
        noised = answers[GRADIENTS]
        variances = keras.tree.pack_sequence_as(
            noised,
            gaussian_variances(
                self._round.queries[GRADIENTS], state[GRADIENTS], noised
            ),
        )
        if self._round.groups is not None:
            noised, variances = (
                self._round.groups.join(self._variables, nest)
                for nest in (noised, variances)
            )
        # One operation each, and half of the square of the norm.
        halves = tf.stack([tf.nn.l2_loss(answer) for answer in noised])
        noise = tf.cast(tf.stack(variances), tf.float64)
        self._rounds.assign_add(1)
        self._sums.assign_add(
            tf.stack(
                [
                    2 * tf.cast(halves, tf.float64),
                    noise * self._coordinates,
                ]
            )
        )

    def read(self) -> Sizes:
        """Returns the sums since the step was compiled."""
        answers, noise = tf.convert_to_tensor(self._sums).numpy()
        return Sizes(
            tuple(variable.path for variable in self._variables),
            self._coordinates,
            int(tf.convert_to_tensor(self._rounds).numpy()),
            answers,
            noise,
        )
