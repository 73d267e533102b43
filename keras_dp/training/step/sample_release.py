"""The sums of a sample over its physical batches, and its traced release."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import tensorflow as tf

from keras_dp._devices import outside_xla
from keras_dp.keras_internals import trace_of
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.private_round import (
    Event,
    PrivateRound,
    Released,
    Sample,
    State,
)


class SampleSums:
    """Holds the sample state between physical batches, on each replica.

    The sums are secret, because they have no noise yet: neither files of Keras
    nor a `tf.train.Checkpoint` hold them. Each replica has sums of its own.
    """

    def __init__(self, empty: Sample, strategy: tf.distribute.Strategy) -> None:
        self._structure = empty
        with strategy.scope():
            self._variables = [
                tf.Variable(
                    leaf,
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                )
                for leaf in keras.tree.flatten(empty)
            ]

    def read(self) -> Sample:
        """Returns the sums of the calling replica."""
        values = [tf.convert_to_tensor(v) for v in self._variables]
        return keras.tree.pack_sequence_as(self._structure, values)

    def assign(self, sample: Sample) -> None:
        """Replaces the sums of the calling replica."""
        leaves = keras.tree.flatten(sample)
        for variable, leaf in zip(self._variables, leaves, strict=True):
            variable.assign(leaf)


Release = Callable[[Sample, State, Event], Released]


class TracedRelease:
    """Traces `PrivateRound.release` in a thread, while the self-check runs.

    All compiled steps then call this trace. It compiles and tests the kernels
    of the noise. It is not run: no noise is drawn and no state changes.
    """

    def __init__(
        self,
        optimizer: DPOptimizer,
        round_: PrivateRound,
        templates: Mapping[str, Any],
        variables: list[Any],
        *,
        jit_compile: bool,
    ) -> None:
        """Begins to trace; `jit_compile` is whether XLA compiles the trace."""

        def arguments() -> Any:
            state = optimizer.read_state()
            return round_.initial_sample(templates), state, round_.plan(state)

        def release(sample: Sample, state: State, planned: Event) -> Released:
            return round_.release(sample, state, variables, planned)

        def trace() -> Release:
            specs = trace_of(tf.function(arguments, autograph=False))
            with outside_xla(not jit_compile):
                traced: Release = trace_of(
                    tf.function(release, autograph=False),
                    *specs.structured_outputs,
                )
            return traced

        self._release = release
        self._thread = ThreadPoolExecutor(1, "keras_dp noise")
        self._trace = self._thread.submit(trace)
        self._thread.shutdown(wait=False)  # It ends with the trace.

    def __call__(
        self, sample: Sample, state: State, planned: Event
    ) -> Released:
        """Releases a sample: by the trace inside a function, else directly.

        It waits for the trace, and raises the error that the thread met.
        """
        traced = self._trace.result()
        release = self._release if tf.executing_eagerly() else traced
        return release(sample, state, planned)

    def close(self) -> None:
        """Waits for the end of the thread."""
        self._thread.shutdown()
