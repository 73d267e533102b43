"""Traces the release of a round, and compiles its noise, in a thread."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from keras_dp.keras_internals import trace_of
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.private_round import (
    Event,
    PrivateRound,
    Released,
    Sample,
    State,
)

Release = Callable[[Sample, State, Event], Released]


class TracedRelease:
    """Traces `PrivateRound.release` in a thread, for all traces of a step.

    The trace compiles and tests the kernels of the noise. It is not run: no
    noise is drawn and no state changes.
    """

    def __init__(
        self,
        optimizer: DPOptimizer,
        asked: PrivateRound,
        templates: Mapping[str, Any],
        variables: list[Any],
    ) -> None:
        """Starts the thread.

        Args:
            optimizer: The optimizer, which holds the state of the queries.
            asked: The round.
            templates: The template of a record of each query.
            variables: The variables that are trained.
        """

        def arguments() -> Any:
            state = optimizer.read_state()
            return asked.initial_sample(templates), state, asked.plan(state)

        def release(sample: Sample, state: State, planned: Event) -> Released:
            return asked.release(sample, state, variables, planned)

        def trace() -> Release:
            specs = trace_of(tf.function(arguments, autograph=False))
            traced: Release = trace_of(
                tf.function(release, autograph=False), *specs.structured_outputs
            )
            return traced

        self._thread = ThreadPoolExecutor(1, "keras_dp noise")
        self._trace = self._thread.submit(trace)
        self._thread.shutdown(wait=False)  # It ends with the trace.

    def result(self) -> Release:
        """Returns the trace, or raises the error that the thread met."""
        return self._trace.result()

    def close(self) -> None:
        """Waits for the end of the thread."""
        self._thread.shutdown()
