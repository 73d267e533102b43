"""Correlated noise: errors of prefix sums, cost of a round, and accuracy.

    python benchmarks/correlated.py errors
    python benchmarks/correlated.py cost
    python benchmarks/correlated.py accuracy --epsilons 1 4 8 --trainings 2
    python benchmarks/correlated.py prices

`errors` optimizes strategies here and with JAX Privacy, which it installs into
an environment of its own (`--peer` names an interpreter that has it), and
compares the root mean squared errors of the prefix sums, both computed here.
`cost` measures the release of a round, with independent and with correlated
noise. `accuracy` trains a small network on MNIST, which is in `$KERAS_DP_DATA`,
at delta = 1e-5; a row is the test accuracy in percent at each learning rate.
`prices` compares the certified bounds on epsilon for balls in bins with random
draws of the dominating pair, which must lie between them, at delta = 1e-3.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_dp
from benchmarks.peers import environments
from keras_dp.accountants import Fourier
from keras_dp.dp_queries import (
    CorrelatedSumQuery,
    DPQuery,
    GaussianSumQuery,
    NormalizedQuery,
)
from keras_dp.ledger import (
    BandedToeplitz,
    BufferedToeplitz,
    CorrelatedSum,
    CyclicPoissonSampling,
    InverseToeplitz,
    Round,
    Strategy,
)
from keras_dp.planning import (
    calibrate_correlated_noise,
    calibrate_noise,
    optimize_strategy,
    prefix_sum_error,
)
from keras_dp.sampling import CyclicPoissonBatches, PoissonBatches, Sampler

DELTA = 1e-5
# Rounds, least separation, most participations, bands.
GRID = [
    (100, 10, None, 10),
    (500, 50, None, 50),
    (1000, 32, 10, 32),
]
BUFFERS = 3
# What the peer runs: a list of settings on the standard input, JSON out.
PEER = """
import json, sys
import jax
jax.config.update("jax_enable_x64", True)
from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz
for n, separation, most, bands, buffers in json.load(sys.stdin):
    banded = toeplitz.optimize_banded_toeplitz(n, bands)
    blt = buffered_toeplitz.optimize(
        n=n, min_sep=separation, max_participations=most, error="mean",
        min_buffers=buffers, max_buffers=buffers)
    print(json.dumps([
        [1.0, *(banded[1:] / banded[0]).tolist()],
        blt.buf_decay.tolist(), blt.output_scale.tolist()]), flush=True)
"""
# Bins, participations of a record, and epsilon of one who knows the bin, in
# stddevs of the noise.
PRICES = [(64, 1, 1.0), (64, 10, 1.0), (64, 10, 2.0), (256, 4, 2.0)]
PRICED = {
    "independent": BandedToeplitz((1.0,)),
    "4 bands": BandedToeplitz((1.0, 0.5, 0.375, 0.3125)),
    "lambda 0.9": InverseToeplitz.subtracting(0.9),
    "BISR of 4": InverseToeplitz.square_root(4),
    "BLT of 2 buffers": BufferedToeplitz((0.9, 0.5), (0.2, 0.2)),
}
PRICED_DELTA, DRAWS = 1e-3, 400_000
EPOCHS, BATCH, RATES = 5, 600, (0.25, 0.5, 1.0)


def banded(bands: int) -> BandedToeplitz:
    """Returns the coefficients of `(1 - x)^(-1/2)`, a start."""
    factors = [(k - 0.5) / k for k in range(1, bands)]
    return BandedToeplitz(tuple(np.cumprod([1.0, *factors]).tolist()))


def buffered(buffers: int) -> BufferedToeplitz:
    """Returns decays and scales over several magnitudes, a start."""
    return BufferedToeplitz(
        tuple((1 - 4.0 ** -np.arange(1, buffers + 1)).tolist()),
        tuple((0.3 / 2.0 ** np.arange(buffers)).tolist()),
    )


def errors(arguments: argparse.Namespace) -> None:
    """Prints the errors of the strategies of both."""
    peer = arguments.peer or environments.python("jax_privacy")
    settings = json.dumps([[*each, BUFFERS] for each in GRID])
    process = subprocess.run(
        [peer, "-c", PEER],
        input=settings,
        capture_output=True,
        text=True,
        check=True,
    )
    print("rounds separation most strategy here seconds peer ratio")
    for setting, line in zip(GRID, process.stdout.splitlines(), strict=True):
        rounds, separation, most, bands = setting
        coefficients, decays, scales = json.loads(line)
        for start, theirs in [
            (banded(bands), BandedToeplitz(tuple(coefficients))),
            (
                buffered(BUFFERS),
                BufferedToeplitz(tuple(decays), tuple(scales)),
            ),
            (InverseToeplitz.square_root(4), None),
            (InverseToeplitz.subtracting(0.9), None),
        ]:
            terms: dict[str, Any] = {
                "min_separation": separation,
                "max_participations": most,
            }
            began = time.perf_counter()
            found = optimize_strategy(start, rounds, **terms)
            seconds = time.perf_counter() - began
            own = prefix_sum_error(found, rounds, **terms)
            row = [f"{own:.4f}", f"{seconds:.2f}"]
            if theirs is not None:
                other = prefix_sum_error(theirs, rounds, **terms)
                row += [f"{other:.4f}", f"{own / other:.4f}"]
            size = len(found.filter().weights[0])
            name = f"{type(found).__name__}({size} buffers)"
            print(rounds, separation, most, name, *row, flush=True)


def prices(arguments: argparse.Namespace) -> None:
    """Prints bounds on epsilon for balls in bins, and what draws say."""
    print("strategy bins participations moved lower drawn upper ratios seconds")
    for bins, taken, moved in PRICES:
        rounds = bins * taken
        for name, strategy in PRICED.items():
            matrix = np.abs(strategy.matrix(rounds))
            columns = matrix.reshape(rounds, taken, bins).sum(axis=1)
            products = columns.T @ columns
            stddev = float(np.sqrt(products[0, 0])) / moved
            event = CorrelatedSum("sum", 1.0, stddev, strategy, rounds, "one")
            ledger = [
                (
                    Round(
                        CyclicPoissonSampling(f"draw-{k}", bins, 1), (event,)
                    ),
                    bins,
                )
                for k in range(taken)
            ]
            began = time.process_time()
            low, high = Fourier().epsilon_bounds(ledger, delta=PRICED_DELTA)
            seconds = time.process_time() - began
            drawn = _drawn_epsilon(products / stddev**2)
            print(
                f"{name}, {bins}, {taken}, {moved:g}: {low:.3f} {drawn:.3f} "
                f"{high:.3f}, {low / drawn:.2f} {high / drawn:.2f}, "
                f"{seconds:.1f} s",
                flush=True,
            )


def _drawn_epsilon(products: np.ndarray) -> float:
    """Returns epsilon of random draws of the pair, in the worse direction."""
    generator = np.random.default_rng(0)
    values, vectors = np.linalg.eigh(products)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    without, within = [], []
    for _ in range(DRAWS // 10_000):
        logs = generator.standard_normal((10_000, len(root))) @ root.T
        logs -= np.diag(products) / 2
        without.append(np.exp(logs).mean(axis=1))
        own = generator.integers(len(root), size=10_000)
        within.append(np.exp(logs + products[own]).mean(axis=1))
    removed, added = 1 / np.concatenate(within), np.concatenate(without)
    low, high = 0.0, 100.0
    while high - low > 1e-5:
        epsilon = (low + high) / 2
        delta = max(
            np.maximum(1 - np.exp(epsilon) * each, 0).mean()
            for each in (removed, added)
        )
        low, high = (epsilon, high) if delta > PRICED_DELTA else (low, epsilon)
    return high


def cost(arguments: argparse.Namespace) -> None:
    """Prints the seconds of a release with independent and other noise."""
    spec = tf.TensorSpec([arguments.parameters])
    strategies = {
        "2 bands": banded(2),
        "4 bands": banded(4),
        "16 bands": banded(16),
        "3 buffers": buffered(3),
        "4 coefficients of the inverse": InverseToeplitz.square_root(4),
    }
    queries: dict[str, DPQuery] = {"independent": GaussianSumQuery(1.0, 1.0)}
    for name, strategy in strategies.items():
        queries[name] = CorrelatedSumQuery(strategy, 1.0, 1.0, 10**6, spec)
    runs = {name: _release(query, spec) for name, query in queries.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.repeats):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    base = np.median(times["independent"])
    for name, each in times.items():
        middle = np.median(each)
        print(f"{name}: {1e3 * middle:.1f} ms, {middle / base:.2f} times")


def _release(query: DPQuery, spec: tf.TensorSpec) -> Any:
    """Returns a function that runs one compiled round, its state in variables.

    So it is in a training.
    """
    state = query.initial_global_state()
    variables = tf.nest.map_structure(tf.Variable, state)
    total = tf.Variable(tf.zeros(spec.shape))

    @tf.function(autograph=False)
    def run() -> None:
        read = tf.nest.map_structure(tf.convert_to_tensor, variables)
        result = query.get_noised_result(tf.zeros(spec.shape), read)
        tf.nest.map_structure(
            lambda variable, value: variable.assign(value),
            variables,
            result.global_state,
        )
        total.assign_add(result.value)

    run()
    return run


def accuracy(arguments: argparse.Namespace) -> None:
    """Prints the test accuracies on MNIST."""
    with np.load(Path(os.environ["KERAS_DP_DATA"]) / "mnist.npz") as file:
        train, test = (
            (_halved(file[f"x_{split}"]), file[f"y_{split}"].astype("int32"))
            for split in ("train", "test")
        )
    records = len(train[0])
    per_epoch = records // BATCH
    rounds = EPOCHS * per_epoch
    chosen = {
        "independent": None,
        "4 bands, sampled": (banded(4), 4),
        "16 bands, sampled": (banded(16), 16),
        "3 buffers, not sampled": (buffered(3), per_epoch),
    }
    for name in arguments.methods or chosen:
        found = chosen[name]
        for epsilon in arguments.epsilons:
            z, sampler, strategy = _settings(found, epsilon, rounds, train)
            for rate in arguments.rates:
                scores = [
                    _accuracy(z, sampler, strategy, rounds, rate, train, test)
                    for _ in range(arguments.trainings)
                ]
                print(
                    f"{name}, epsilon {epsilon:g}, noise {z:.3f}, rate "
                    f"{rate:g}: {np.mean(scores):.2f} "
                    f"({', '.join(f'{each:.2f}' for each in scores)})",
                    flush=True,
                )


def _settings(
    found: tuple[Strategy, int] | None,
    epsilon: float,
    rounds: int,
    train: tuple[np.ndarray, np.ndarray],
) -> tuple[float, Sampler, Strategy | None]:
    """Returns the noise multiplier, the sampler and the strategy."""
    share = BATCH / len(train[0])
    target: dict[str, float] = {"target_epsilon": epsilon, "delta": DELTA}
    if found is None:
        z = calibrate_noise(sampling_probability=share, rounds=rounds, **target)
        return z, PoissonBatches(train, sampling_probability=share), None
    start, classes = found
    probability = min(1.0, share * classes)
    strategy = optimize_strategy(start, rounds, min_separation=classes)
    z = calibrate_correlated_noise(
        strategy,
        rounds,
        classes=classes,
        sampling_probability=probability,
        **target,
    )
    sampler = CyclicPoissonBatches(
        train, classes=classes, sampling_probability=probability
    )
    return z, sampler, strategy


def _accuracy(
    z: float,
    sampler: Sampler,
    strategy: Strategy | None,
    rounds: int,
    rate: float,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
) -> float:
    """Trains once, and returns the test accuracy in percent."""
    model = keras.Sequential(
        [
            keras.Input(train[0].shape[1:]),
            layers.Conv2D(16, 5, 2, padding="same", activation="tanh"),
            layers.Conv2D(32, 3, 2, padding="same", activation="tanh"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    specs = [tf.TensorSpec(v.shape) for v in model.trainable_variables]
    query: DPQuery = GaussianSumQuery(1.0, noise_multiplier=z)
    if strategy is not None:
        query = CorrelatedSumQuery(strategy, 1.0, z, rounds, specs)
    private = keras_dp.PrivateModel(model, self_check_examples=0)
    private.compile(
        keras_dp.DPOptimizer(
            keras.optimizers.SGD(rate, momentum=0.9),
            query=NormalizedQuery(query, BATCH),
            ledger=keras_dp.PrivacyLedger.in_memory(dataset="benchmark"),
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    private.fit(sampler, epochs=1, steps_per_epoch=rounds, verbose=0)
    guesses = model.predict(test[0], batch_size=1000, verbose=0).argmax(axis=1)
    return float(100 * np.mean(guesses == test[1]))


def _halved(images: np.ndarray) -> np.ndarray:
    """Returns images of half the width and height, in [-1, 1]."""
    parts = images.reshape(len(images), 14, 2, 14, 2).mean(axis=(2, 4))
    return (parts[..., np.newaxis] / 127.5 - 1).astype("float32")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    each = commands.add_parser("errors")
    each.add_argument("--peer", help="a Python that has jax_privacy")
    each.set_defaults(run=errors)
    each = commands.add_parser("cost")
    each.add_argument("--parameters", type=int, default=1_000_000)
    each.add_argument("--repeats", type=int, default=30)
    each.set_defaults(run=cost)
    each = commands.add_parser("accuracy")
    each.add_argument("--epsilons", type=float, nargs="+", default=[1, 4, 8])
    each.add_argument("--trainings", type=int, default=1)
    each.add_argument("--rates", type=float, nargs="+", default=[*RATES])
    each.add_argument("--methods", nargs="+")
    each.set_defaults(run=accuracy)
    each = commands.add_parser("prices")
    each.set_defaults(run=prices)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
