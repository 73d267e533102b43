"""What a private step costs on a GPU, beside Keras's own `fit`.

    python benchmarks/gpu.py [--workload w1 ... bert] [--rounds 7]

prints the table of W1 to W5 and of an encoder of BERT-base's size (110 million
parameters), on whatever GPU TensorFlow finds, and says so where it finds none.
Both sides are compiled by XLA, in float32 without TensorFloat-32, and timed in
turn in one process; memory is the peak that TensorFlow's allocator counts.
Below the table stand the normal variables a second that ChaCha20 makes on the
device, and whether rounds with the same seed end in the same weights, bit by
bit, with TensorFlow's deterministic operations.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from peers.keras_dp_worker import keras_step, private_step
from workloads import Workload, find

GPU = "GPU:0"
DEFAULT = ["w1", "w2", "w3", "w4", "w5", "bert"]


def found_gpu() -> str | None:
    """Returns the name of the first GPU, `None` where there is none."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    details = tf.config.experimental.get_device_details(gpus[0])
    return str(details.get("device_name", gpus[0].name))


def seconds_and_memory(step: Any, workload: Workload) -> tuple[float, float]:
    """Runs one turn: seconds a step, and bytes at the peak."""
    tf.config.experimental.reset_memory_stats(GPU)
    seconds = step.run(workload.steps) / workload.steps
    return seconds, tf.config.experimental.get_memory_info(GPU)["peak"]


def print_row(name: str, turns: int) -> None:
    """Prints one workload, both sides in turn."""
    import keras

    workload = find(name)
    sides = private_step(workload, []), keras_step(workload, [])
    for side in sides:
        side.run(workload.steps)  # Traces and compiles.
    times: tuple[list[float], list[float]] = ([], [])
    peaks: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns):
        for side, seconds, peak in zip(sides, times, peaks, strict=True):
            of_turn = seconds_and_memory(side, workload)
            seconds.append(of_turn[0])
            peak.append(of_turn[1])
    ratios = [ours / keras_own for ours, keras_own in zip(*times, strict=True)]
    print(
        f"| {name} | {workload.batch} "
        f"| {1e3 * statistics.median(times[0]):.2f} "
        f"| {1e3 * statistics.median(times[1]):.2f} "
        f"| {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f}-{max(ratios):.2f}) "
        f"| {max(peaks[0]) / 2**20:.0f} | {max(peaks[1]) / 2**20:.0f} |",
        flush=True,
    )
    keras.backend.clear_session()


def print_noise(size: int = 2**26, turns: int = 20) -> None:
    """Prints how many normal variables a second the device makes."""
    from keras_dp.noise import seeds, streams

    @tf.function(jit_compile=True)
    def total(seed: tf.Tensor) -> tf.Tensor:
        unit = tf.constant(2.0**24, tf.float64)
        return tf.reduce_sum(streams.rounded_normals(size, seed, unit))

    drawn = [seeds.fresh(turn) for turn in range(turns + 1)]
    total(drawn[0]).numpy()
    start = time.perf_counter()
    for seed in drawn[1:]:
        last = total(seed)
    last.numpy()  # Waits for the device, once.
    rate = turns * size / (time.perf_counter() - start)
    print(f"\nChaCha20: {rate / 1e9:.2f} G normal variables a second.")


def weights_after(seed: int) -> np.ndarray:
    """Returns the weights after five private rounds of W1 with one seed."""
    import keras
    from workloads import WORKLOADS, data

    import keras_dp

    keras.utils.set_random_seed(seed)
    x, y = data(WORKLOADS["w1"])
    private = keras_dp.PrivateModel(WORKLOADS["w1"].make())
    with keras_dp.noise.reproducible():
        private.compile(
            keras_dp.optimizers.DPSGD(
                0.1,
                query=keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=256),
                ledger=keras_dp.PrivacyLedger.in_memory(dataset="synthetic"),
                seed=seed,
            ),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        private.fit(
            x[:1280], y[:1280], batch_size=256, shuffle=False, verbose=0
        )
    weights = private.get_weights()
    return np.concatenate([np.ravel(each) for each in weights])


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, or that there is no GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", nargs="+", default=DEFAULT)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    gpu = found_gpu()
    if gpu is None:
        print(
            "TensorFlow finds no GPU here, so nothing was measured. Install "
            "`tensorflow[and-cuda]` (make env TENSORFLOW=tensorflow) on a "
            "machine with one."
        )
        return 1
    tf.config.experimental.enable_tensor_float_32_execution(False)
    print(f"{gpu}, TensorFlow {tf.__version__}\n")
    print(
        "| model | batch | private ms | Keras ms | ratio, median (range) "
        "| private peak MiB | Keras's |"
    )
    print("|" + " --- |" * 7)
    for name in options.workload:
        print_row(name, options.rounds)
    print_noise()
    tf.config.experimental.enable_op_determinism()
    same = np.array_equal(weights_after(1), weights_after(1))
    print(f"The same seed, the same weights, bit by bit: {same}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
