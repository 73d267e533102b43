"""Runs rounds: each is covered by the ledger first, and computed then."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.feed import Feed, PhysicalStep
from keras_dp.optimizers.recording import RoundRecorder
from keras_dp.optimizers.training_step import TrainingStep


class TrainingLoop:
    """The rounds of one call of `fit` or `train_on_batch`.

    Attributes:
        recorder: Settles what the loop used of the ledger.
    """

    def __init__(
        self,
        feed: Feed,
        optimizer: DPOptimizer,
        prepared: Callable[[PhysicalStep], TrainingStep],
    ) -> None:
        """Starts with nothing recorded.

        Args:
            feed: Where samples come from.
            optimizer: Built by `prepared`.
            prepared: Returns the compiled steps for a physical batch.
        """
        self._feed, self._prepared = feed, prepared
        factor = 1 if feed.grouping is None else feed.grouping.bound_factor
        asked = optimizer.asked
        self.recorder = RoundRecorder(
            optimizer.required_ledger(),
            plan=lambda: optimizer.planned_round(
                feed.sampling,
                seeded=feed.seeded,
                gradient_bound_factor=factor,
            ),
            events_of=lambda event: asked.ledger_events(event, factor),
            adapts=asked.adapts,
        )

    def run(self, iterator: Iterator[Any], rounds: int) -> Mapping[str, Any]:
        """Runs up to `rounds` rounds, and returns the metrics so far.

        Raises:
            StopIteration: There is no round left at all.
        """
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
        step = self._feed.step_from(next(iterator))
        training = self._prepared(step)
        training.check_unchanged()
        self.recorder.cover()
        logs, event = training.run(step, first=True, grouping=grouping)
        while not step.ends_sample:
            step = self._feed.step_from(next(iterator))
            logs, event = training.run(step, first=False, grouping=grouping)
        self.recorder.released(event)
        return logs
