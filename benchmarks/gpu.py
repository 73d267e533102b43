"""What a private step costs on a GPU, beside Keras's own `fit` and the peers.

    python benchmarks/gpu.py [--workload w1 ... bert:batch=32] [--rounds 5]
        [--peer opacus=PYTHON] [--peer jax_privacy=PYTHON]

prints the table of W1 to W5 and of an encoder of BERT-base's size (110 million
parameters), on the GPU that TensorFlow finds, and says so where it finds none.
Each way to train is a process with its own framework, in float32 without
TensorFloat-32; they have their turns one after another. A peer takes part with
the interpreter of an environment that has it, and a GPU of its own framework.
Memory is the peak that the framework's allocator counts. Below the table stand
the normal variables a second that ChaCha20 makes on the device, and whether
rounds with the same seed end in the same weights, bit by bit, with
TensorFlow's deterministic operations.
"""

import argparse
import concurrent.futures
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from peers.driver import FOLDER, Worker, WorkerError, in_turns
from workloads import find

DEFAULT = ["w1", "w2", "w3:batch=512", "w4:batch=256", "w5", "bert:batch=32"]
# A turn takes about so long, once a step is known.
TURN_SECONDS = 1.0
FIRST_STEPS = 8
MOST_STEPS = 2_000


class Way(NamedTuple):
    """A worker's script, its mode, and what the table calls it."""

    framework: str
    mode: str
    name: str


KERAS = Way("keras_dp", "keras", "Keras")
OURS = Way("keras_dp", "private", "keras_dp")
WAYS = [
    KERAS,
    OURS,
    Way("keras_dp", "poisson", "keras_dp, Poisson"),
    Way("opacus", "torch", "PyTorch"),
    Way("opacus", "ghost", "Opacus, ghost"),
    Way("opacus", "hooks", "Opacus, gradients"),
    Way("jax_privacy", "jax", "JAX"),
    Way("jax_privacy", "microbatch all", "JAX Privacy"),
    Way("jax_privacy", "microbatch 16", "JAX Privacy, microbatches of 16"),
]


def started(
    workload: str, ways: Sequence[Way], interpreters: dict[str, str]
) -> list[Worker | WorkerError]:
    """Starts all workers at once: each traces and compiles on its own."""

    def start(way: Way) -> Worker | WorkerError:
        script = FOLDER / f"{way.framework}_worker.py"
        command = [interpreters[way.framework], str(script)]
        command += ["--workload", workload, "--mode", way.mode]
        try:
            return Worker(command, most_bytes=64 * 10**9)
        except WorkerError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(ways)) as pool:
        return list(pool.map(start, ways))


def print_rows(
    workload: str, rounds: int, interpreters: dict[str, str]
) -> None:
    """Prints a row for each way to train on a workload."""
    ways = [way for way in WAYS if way.framework in interpreters]
    workers = started(workload, ways, interpreters)
    alive = [i for i, made in enumerate(workers) if isinstance(made, Worker)]
    running = [workers[i] for i in alive]
    results: list = list(workers)
    try:
        first = in_turns(running, [FIRST_STEPS] * len(alive), rounds=2)
        steps = [
            FIRST_STEPS
            if isinstance(turns, WorkerError)
            else max(
                FIRST_STEPS,
                min(MOST_STEPS, int(TURN_SECONDS / turns[-1].seconds)),
            )
            for turns in first
        ]
        in_turns(running, steps, rounds=1)  # New shapes are traced here.
        for i, turns in zip(
            alive, in_turns(running, steps, rounds), strict=True
        ):
            results[i] = turns
    finally:
        for worker in running:
            worker.close()
    seconds = {
        way: [turn.seconds for turn in turns]
        for way, turns in zip(ways, results, strict=True)
        if not isinstance(turns, WorkerError)
    }

    def ratio(above: Way, below: Way) -> str:
        if above not in seconds or below not in seconds or above == below:
            return ""
        pairs = zip(seconds[above], seconds[below], strict=True)
        ratios = [a / b for a, b in pairs]
        middle = statistics.median(ratios)
        return f"{middle:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"

    for way, turns in zip(ways, results, strict=True):
        start = f"| {workload} | {find(workload).batch} | {way.name} |"
        if isinstance(turns, WorkerError):
            print(f"{start} {turns} | | | |", flush=True)
            continue
        milliseconds = 1e3 * statistics.median(seconds[way])
        private = way.mode not in ("keras", "torch", "jax")
        print(
            f"{start} {milliseconds:.2f} | {ratio(way, KERAS)} "
            f"| {ratio(OURS, way) if private else ''} "
            f"| {turns[-1].peak_megabytes:.0f} |",
            flush=True,
        )


def print_noise(size: int = 2**26, turns: int = 20) -> None:
    """Prints how many normal variables a second the device makes."""
    import tensorflow as tf

    from keras_dp.noise import seeds, streams

    @tf.function(jit_compile=True)
    def total(seed: tf.Tensor) -> tf.Tensor:
        unit = tf.constant(2.0**24, tf.float64)
        return tf.reduce_sum(streams.rounded_normals(size, seed, unit)[0])

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


def print_device() -> None:
    """Prints what TensorFlow does alone on the device."""
    import tensorflow as tf

    print_noise()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.config.experimental.enable_op_determinism()
    same = np.array_equal(weights_after(1), weights_after(1))
    print(f"The same seed, the same weights, bit by bit: {same}.")


def found_gpu() -> str | None:
    """Returns the name of the first GPU, `None` where there is none.

    TensorFlow is asked in a process that ends: it keeps what it takes.
    """
    asked = (
        "import tensorflow as tf\n"
        "for gpu in tf.config.list_physical_devices('GPU')[:1]:\n"
        "    details = tf.config.experimental.get_device_details(gpu)\n"
        "    name = details.get('device_name', gpu.name)\n"
        "    print(f'{name}, TensorFlow {tf.__version__}')"
    )
    said = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True
    )
    return said.stdout.strip() or None


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, or that there is no GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", nargs="*", default=DEFAULT)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", action="append", default=[])
    options = parser.parse_args(arguments)
    gpu = found_gpu()
    if gpu is None:
        print(
            "TensorFlow finds no GPU here, so nothing was measured. Install "
            "`tensorflow[and-cuda]` (make env TENSORFLOW=tensorflow) on a "
            "machine with one."
        )
        return 1
    # Several processes share the memory of the device.
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["JAX_PLATFORMS"] = "cuda"
    print(f"{gpu}\n")
    print(
        "| model | batch | training | ms per step | over Keras "
        "| ours over it | peak MB |"
    )
    print("|" + " --- |" * 7)
    peers = dict(peer.split("=", 1) for peer in options.peer)
    for workload in options.workload:
        print_rows(
            workload, options.rounds, {"keras_dp": sys.executable, **peers}
        )
    print_device()
    return 0


if __name__ == "__main__":
    sys.exit(main())
