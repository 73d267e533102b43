"""Runs rounds: each is covered by the ledger first, and computed then."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from keras_dp.errors import PrivateTrainingError
from keras_dp.training.data_adapter import Feed, PhysicalStep
from keras_dp.training.devices.replicas import Replicas, alone
from keras_dp.training.devices.workers import (
    check_agreement,
    refusal_of,
    terms_of,
)
from keras_dp.training.preconditions import check_lengths, check_unit
from keras_dp.training.recording import RoundRecorder, UnrecordedRounds
from keras_dp.training.step import TrainingStep


@contextlib.contextmanager
def running(
    private: Any, feed: Feed, replicas: Replicas, terms: Any = None
) -> Iterator["TrainingLoop"]:
    """Records the rounds run inside, and settles them at the end.

    Args:
        private: As in `TrainingLoop`.
        feed: As in `TrainingLoop`.
        replicas: As in `TrainingLoop`.
        terms: As in `TrainingLoop`.

    Raises:
        PrivateTrainingError: The model or its optimizer is training already.
    """
    optimizer = private.optimizer
    if private.loop is not None or optimizer.is_recording:
        raise PrivateTrainingError(
            "A private training must not be started inside another one of "
            "the same model or optimizer, such as from a callback."
        )
    unit = optimizer.required_ledger().header.unit
    check_unit(unit, feed.unit, private.beside.queries)
    loop = private.loop = TrainingLoop(feed, private, replicas, terms)
    optimizer.is_recording = True
    try:
        yield loop
    finally:
        private.loop = None
        optimizer.is_recording = False
        loop.recorder.settle()


class TrainingLoop:
    """The rounds of one call of `fit` or `train_on_batch`.

    Attributes:
        recorder: Settles what the loop used of the ledger.
    """

    def __init__(
        self, feed: Feed, private: Any, replicas: Replicas, terms: Any = None
    ) -> None:
        """Starts with nothing recorded.

        Args:
            feed: Where samples come from.
            private: The `PrivateModel`, compiled.
            replicas: Of the model.
            terms: What `fit` was asked for and all workers must agree on.
        """
        self._feed, self._private, self._replicas = feed, private, replicas
        self._terms, self._agreed = terms, replicas.workers == 1
        self._own: Iterator[Any] | None = None
        self._step: TrainingStep | None = None
        self.recorder: RoundRecorder | UnrecordedRounds
        self.recorder = UnrecordedRounds()
        self._refusal = refusal_of(private.optimizer.ledger, feed, replicas)
        if replicas.is_chief and self._refusal is None:
            self.recorder = self._recorder()

    def _planned_round(self) -> Any:
        feed = self._feed
        return self._private.optimizer.planned_round(
            feed.sampling,
            seeded=feed.seeded,
            gradient_bound_factor=self._bound_factor,
        )

    @property
    def _bound_factor(self) -> int:
        grouping = self._feed.grouping
        return 1 if grouping is None else grouping.bound_factor

    def _recorder(self) -> RoundRecorder:
        asked, factor = self._private.optimizer.asked, self._bound_factor
        return RoundRecorder(
            self._private.optimizer.required_ledger(),
            plan=self._planned_round,
            events_of=lambda event: asked.ledger_events(event, factor),
            adapts=asked.adapts,
        )

    def run(self, iterator: Iterator[Any], rounds: int) -> Mapping[str, Any]:
        """Runs up to `rounds` rounds, and returns the metrics so far.

        Raises:
            StopIteration: There is no round left at all.
        """
        if self._feed.is_sampler and self._replicas.are_many:
            # Keras would cut the flags of a batch into parts as well.
            if self._own is None:
                self._own = iter(self._feed.dataset())
            iterator = self._own
        logs = self._run_round(iterator)
        for _ in range(rounds - 1):
            try:
                logs = self._run_round(iterator)
            except StopIteration:
                break
        return logs

    def _run_round(self, iterator: Iterator[Any]) -> Mapping[str, Any]:
        """Runs one sample to its release."""
        grouping = self._feed.grouping
        step = self._next_step(iterator)
        training = self._prepared(step)
        self.recorder.cover()
        logs, event = training.run(step, first=True, grouping=grouping)
        while not step.ends_sample:
            step = self._next_step(iterator)
            logs, event = training.run(step, first=False, grouping=grouping)
        if training.releases_apart:
            # The chief has covered the round: without its part there is
            # nothing that could be released.
            logs, event = training.release()
        self.recorder.released(event)
        return logs

    def _next_step(self, iterator: Iterator[Any]) -> PhysicalStep:
        data = next(iterator)
        if not self._replicas.are_many:
            return self._feed.step_from(data)
        step = self._feed.step_from(self._replicas.whole(data))
        return self._replicas.padded(step)

    def _prepared(self, step: PhysicalStep) -> TrainingStep:
        """Builds what is not built, and checks the engine once."""
        check_lengths(step.data)
        if self._step is None:
            with self._replicas.strategy.scope():
                self._step = self._private.built_step(step)
        with alone():  # The first replica is checked, on its own weights.
            self._step.check(step)
        self._step.check_unchanged()
        if not self._agreed:
            check_agreement(
                self._replicas,
                self._feed,
                self._planned_round(),
                terms_of(self._private, self._terms),
                self._refusal,
            )
            self._agreed = True
        return self._step
