"""Compiles the noise of a round while the self-check runs."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from keras_dp.keras_internals import trace_of
from keras_dp.optimizers.dp_optimizer import DPOptimizer


def compile_noise_ahead(
    optimizer: DPOptimizer, templates: Mapping[str, Any], variables: list[Any]
) -> Future[None]:
    """Compiles and tests the kernels of a release, in a thread.

    A release is traced and never run, so that no noise is drawn and no state
    changes. The step traces it again. It then finds the kernels compiled, or
    waits for them. If compiling fails here, it fails there too: the caller need
    not look at the result.

    Args:
        optimizer: The optimizer, built with its queries.
        templates: The template of a record of each query.
        variables: The variables that are trained.

    Returns:
        A future that is done when the thread has ended.
    """

    def release() -> Any:
        state = optimizer.read_state()
        sample = optimizer.round.initial_sample(templates)
        planned = optimizer.round.plan(state)
        return optimizer.round.release(
            sample, state, variables, planned
        ).answers

    def trace() -> None:
        trace_of(tf.function(release, autograph=False))

    threads = ThreadPoolExecutor(1, thread_name_prefix="keras_dp noise")
    try:
        return threads.submit(trace)
    finally:
        threads.shutdown(wait=False)
