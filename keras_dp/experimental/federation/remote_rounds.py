"""Rounds of federated averaging whose users train in other processes."""

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging

from keras_dp import _check
from keras_dp.errors import BudgetExceededError, PrivateTrainingError
from keras_dp.experimental.federation.federated_model import FederatedModel
from keras_dp.keras_internals import check_compiled
from keras_dp.ledger import PoissonUserSampling, PrivacyLedger
from keras_dp.optimizers.private_round import (
    GRADIENTS,
    Event,
    RecordBatch,
    Sample,
)
from keras_dp.sampling import random_words
from keras_dp.sampling.bernoulli_draw import BernoulliDraw
from keras_dp.spending.run import RunDetails
from keras_dp.training.advice.condition import judge
from keras_dp.training.advice.of_models import BUILT
from keras_dp.training.advice.of_trainings import RESTORED
from keras_dp.training.data.data_adapter import DataAdapter
from keras_dp.training.loop import busy

User = TypeVar("User", bound=Hashable)


class RemoteRounds:
    """The rounds of one federated training over users in other processes.

    Inside `recording`, each round is `draw`, then `receive` for each answer,
    then `release`. Who sends the weights and brings the answers is another
    program's business: `keras_dp.experimental.federation` has Flower do it.

    Guarantee: the guarantee of `FederatedModel` holds for users who are one
    process each, whatever their answers are. Each round is in the ledger before
    a user is asked. Every user who is present takes part with
    `sampling_probability`, drawn with the operating system's generator. An
    answer counts once, if its user was asked, and is clipped here. Missing
    answers change no denominator.
    """

    def __init__(
        self,
        federated: FederatedModel,
        sampling_probability: float,
        rounds: int,
        *,
        target_epsilon: float | None = None,
        delta: float | None = None,
        run: RunDetails | str | None = None,
    ) -> None:
        """Records nothing yet.

        The federated model is compiled, around a model that is built. Draw no
        more than `rounds`: a run beyond its plan has no guarantee from it.
        Delta is 1e-5 by default, as the number of users is not known.
        """
        _check.kind(FederatedModel, federated=federated)
        _check.probability(sampling_probability=sampling_probability)
        _check.integer_at_least(1, rounds=rounds)
        check_compiled(federated, "fit")
        model = federated.model
        if not model.built:
            raise PrivateTrainingError(
                "The model must be built before its weights are sent to users. "
                "Give it an Input layer, or call model.build."
            )
        judge(BUILT, model)
        federated.build_optimizer()
        training = federated._training(
            DataAdapter(None, unit="user"),  # Other processes have records.
            {"steps_per_epoch": rounds},
            target_epsilon=target_epsilon,
            delta=delta,
            run=run,
        )
        if not isinstance(training.ledger, PrivacyLedger):
            raise PrivateTrainingError(
                "The server of a federated training must keep the ledger "
                f"itself. Received: ledger={_check.shown(training.ledger)}. "
                "Open it with PrivacyLedger.open."
            )
        judge(RESTORED, training.optimizer, said=training.said)
        self.federated = federated
        self.sampling_probability = float(sampling_probability)
        self._rounds, self._rounds_run = rounds, 0
        self._training, self._optimizer = training, training.optimizer
        self._variables = list(model.trainable_variables)
        self._run = training.new_run()
        self._planned: Event | None = None
        self._sample: Sample | None = None
        self._before: list[tf.Tensor] = []
        self._asked: set[Hashable] = set()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Marks the optimizer as busy, and ends the run at the end."""
        with busy(self._optimizer), self._run:
            yield

    def draw(self, users: Sequence[User]) -> list[User] | None:
        """Records one more round, then draws the users who are asked.

        `None` says that the target or the account leaves no room for another
        round; without room for the first of all it raises.
        """
        if self._run.ran_out:
            return None
        if self._planned is None or self._optimizer.round.adapts:
            self._planned = self._optimizer.plan()
        sampling = PoissonUserSampling(
            self.sampling_probability, drawn_by_library=True
        )
        planned = self._training.planned(self._planned, sampling)
        if self._run.row is None:
            self._run.limits.expect(self._training.forecast(planned, None))
        try:
            # Users take longer than the ledger.
            self._run.cover(planned, most=1)
        except BudgetExceededError:
            if not self._run.ran_out or not self._rounds_run:
                raise
            logging.warning(
                "Training ends after %d rounds of %d: one more would exceed "
                "the target epsilon, or the account.",
                self._rounds_run,
                self._rounds,
            )
            return None
        asked = []
        if users:
            draw = BernoulliDraw(len(users), self.sampling_probability)
            drawn = draw.indices(random_words.from_operating_system)
            asked = [users[index] for index in drawn]
        self._asked = set(asked)
        self._before = [
            tf.identity(tf.convert_to_tensor(each)) for each in self._variables
        ]
        round_ = self._optimizer.round
        templates = round_.templates(self._variables, {})
        self._sample = round_.initial_sample(templates)
        return asked

    def receive(
        self, user: Hashable, weights: Sequence[npt.NDArray[Any]]
    ) -> bool:
        """Adds the update of a user to the sample, clipped by the query.

        The weights after the user's training are those of each trainable
        variable, in order. Numbers that are not finite make the update count as
        zero.

        Returns:
            Whether it was taken. It is not if the user was not asked, or has
            answered, or if the shapes or types are not those of the weights.
        """
        if (
            self._sample is None
            or user not in self._asked
            or not self._are_like(weights)
        ):
            return False
        self._asked.remove(user)
        records = [
            (before - tf.convert_to_tensor(after))[tf.newaxis]
            for before, after in zip(self._before, weights, strict=True)
        ]
        self._sample = self._optimizer.round.accumulate(
            self._optimizer.read_state(),
            self._sample,
            self._variables,
            {GRADIENTS: RecordBatch(records, None)},
        )
        return True

    def release(self) -> dict[str, float]:
        """Noises the sum, applies it, and returns the public scalars."""
        if self._sample is None or self._planned is None:
            raise PrivateTrainingError(
                "A round must be drawn before it is released: the ledger "
                "covers it then. Call draw first."
            )
        sample, self._sample, self._asked = self._sample, None, set()
        penalties: list[tf.Tensor | None] = [None] * len(self._variables)
        event, _ = self._optimizer.release(
            sample, self._variables, penalties, self._planned
        )
        self._run.released(lambda: self._optimizer.round.ledger_events(event))
        self._rounds_run += 1
        metrics = self._optimizer.public_metrics()
        return {name: float(value) for name, value in metrics.items()}

    def _are_like(self, weights: Sequence[npt.NDArray[Any]]) -> bool:
        return len(weights) == len(self._before) and all(
            isinstance(after, np.ndarray)
            and after.shape == tuple(before.shape)
            and after.dtype == before.dtype.as_numpy_dtype
            for before, after in zip(self._before, weights, strict=True)
        )
