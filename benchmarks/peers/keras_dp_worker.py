"""Our private step, and Keras's own without privacy, as `fit` runs them.

Modes: `private`, with everything: clipping, noise, the update, the ledger on
disk, on as many rows as the others; `poisson`, the same on Poisson samples,
whose sizes vary, so that batches have room for more; `blocks`, the same with
50 rounds a call; `unchecked`, as `private` without the self-check, which takes
more memory than a step; `keras`, a plain `fit`. On a GPU where there is one,
without TensorFloat-32.
"""

import atexit
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import workloads
from peers import protocol


def timed(fit: Callable[[int], Any]) -> Callable[[int], float]:
    """Returns `fit` as a function that says how long it took."""

    def run(steps: int) -> float:
        start = time.perf_counter()
        fit(steps)
        return time.perf_counter() - start

    return run


def device_bytes() -> Callable[[], float] | None:
    """Returns what says how much of the GPU was held, `None` without one."""
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return None
    return lambda: tf.config.experimental.get_memory_info("GPU:0")["peak"]


def fit_arrays(model: Any, x: Any, y: Any, batch: int, steps: int) -> None:
    """Runs so many steps, or whole epochs of about as many."""
    if steps * batch <= len(x):
        x, y, epochs = x[: steps * batch], y[: steps * batch], 1
    else:
        epochs = -(-steps * batch // len(x))
    model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)


def keras_step(
    workload: workloads.Workload, metrics: list[str], at_once: int = 1
) -> Any:
    """Returns Keras's own `fit`, on shuffled batches of arrays.

    Args:
        workload: What is trained.
        metrics: As for `keras.Model.compile`.
        at_once: The `steps_per_execution`.
    """
    import keras
    import tensorflow as tf

    x, y = workloads.data(workload)
    model = workload.make()
    model.compile(
        keras.optimizers.SGD(protocol.LEARNING_RATE),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=metrics,
        steps_per_execution=at_once,
    )

    def fit(steps: int) -> None:
        fit_arrays(model, x, y, workload.batch, steps)

    versions = f"keras {keras.__version__}, tensorflow {tf.__version__}"
    return protocol.Step(
        model.count_params(), timed(fit), versions, device_bytes()
    )


def private_step(
    workload: workloads.Workload,
    metrics: list[str],
    *,
    draws: bool = True,
    checks: bool = True,
    scales: bool = False,
    precision: str = "assumed",
    at_once: int = 1,
    by_xla: bool = False,
) -> Any:
    """Returns the private `fit` of the same arrays.

    Args:
        workload: What is trained.
        metrics: As for `keras.Model.compile`.
        draws: Whether batches are Poisson samples, or of one size.
        checks: Whether the gradients are checked before the first round.
        scales: Whether the gradients are divided by scales that adapt.
        precision: See `keras_dp.GaussianSumQuery`.
        at_once: The `steps_per_execution`.
        by_xla: The `jit_compile`.
    """
    import keras

    import keras_dp

    x, y = workloads.data(workload)
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    ledger = keras_dp.PrivacyLedger.open(
        Path(folder.name) / "steps.ledger", dataset="synthetic"
    )
    inner = workload.make()
    model = keras_dp.PrivateModel(inner, self_check_examples=2 * checks)
    query = keras_dp.GaussianAverageQuery(
        protocol.L2_NORM_CLIP,
        protocol.NOISE_MULTIPLIER,
        denominator=workload.batch,
        precision=precision,
    )
    if scales:
        query = keras_dp.dp_queries.AdaptiveScaleQuery(
            query, inner.trainable_variables
        )
    model.compile(
        keras_dp.optimizers.DPSGD(
            protocol.LEARNING_RATE, query=query, ledger=ledger
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=metrics,
        steps_per_execution=at_once,
        jit_compile=by_xla or "auto",
    )
    samples = keras_dp.sampling.PoissonBatches(
        (x, y), sampling_probability=workload.batch / len(x)
    )

    def fit(steps: int) -> None:
        if draws:
            model.fit(samples, steps_per_epoch=steps, verbose=0)
        else:
            fit_arrays(model, x, y, workload.batch, steps)

    versions = f"keras_dp {keras_dp.__version__}"
    return protocol.Step(
        inner.count_params(), timed(fit), versions, device_bytes()
    )


def build(workload: workloads.Workload, mode: str) -> Any:
    """Returns the step of a mode."""
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)
    if mode == "keras":
        return keras_step(workload, [])
    return private_step(
        workload,
        [],
        draws=mode in {"poisson", "blocks"},
        checks=mode != "unchecked",
        at_once=50 if mode == "blocks" else 1,
    )


if __name__ == "__main__":
    protocol.serve(build)
