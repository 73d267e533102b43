"""How much longer a private step takes than an ordinary one.

Both are measured as a user runs them: `fit` on the same model, data and batch
size, in turn, several times, in one process. The private side draws Poisson
samples, clips, adds noise, updates and records every round in a ledger file;
the other side is Keras's `fit` on shuffled batches. A step of either is one
update of the weights. The median over the turns of each ratio is what counts:
absolute times vary with the load of the machine.

    python benchmarks/steps.py [--turns 7] [--model adult] [--profile]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from keras import layers

import keras_dp


class Workload(NamedTuple):
    """A model, the shape of its data, and its batch."""

    make: Callable[[], keras.Model]
    shape: tuple[int, ...]
    classes: int
    batch: int
    steps: int
    vocabulary: int = 0


def _adult() -> keras.Model:
    return keras.Sequential([keras.Input((108,)), layers.Dense(2)])


def _mnist() -> keras.Model:
    """The CNN of TensorFlow Privacy's tutorial."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 8, 2, padding="same", activation="relu"),
            layers.MaxPooling2D(2, 1),
            layers.Conv2D(32, 4, 2, activation="relu"),
            layers.MaxPooling2D(2, 1),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )


def _mlp() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(1024, activation="relu"),
            layers.Dense(1024, activation="relu"),
            layers.Dense(10),
        ]
    )


def _transformer() -> keras.Model:
    ids = keras.Input((64,), dtype="int32")
    x = layers.Embedding(2000, 64)(ids)
    for _ in range(2):
        attention = layers.MultiHeadAttention(4, 16)(x, x)
        x = layers.LayerNormalization()(x + attention)
        hidden = layers.Dense(128, activation="relu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(64)(hidden))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(ids, layers.Dense(2)(x))


WORKLOADS = {
    "adult": Workload(_adult, (108,), 2, batch=512, steps=60),
    "mnist_cnn": Workload(_mnist, (28, 28, 1), 10, batch=256, steps=40),
    "mlp": Workload(_mlp, (784,), 10, batch=512, steps=12),
    "transformer": Workload(
        _transformer, (64,), 2, batch=64, steps=12, vocabulary=2000
    ),
}


def _data(workload: Workload, records: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    shape = (records, *workload.shape)
    if workload.vocabulary:
        x = generator.integers(0, workload.vocabulary, shape, dtype=np.int32)
    else:
        x = generator.normal(size=shape).astype(np.float32)
    return x, generator.integers(0, workload.classes, records)


def _seconds_per_step(fit: Callable[[], None], steps: int) -> float:
    start = time.perf_counter()
    fit()
    return (time.perf_counter() - start) / steps


def measure(workload: Workload, turns: int) -> tuple[list[float], list[float]]:
    """Returns the seconds per step of both sides, one of each per turn."""
    batch, steps = workload.batch, workload.steps
    x, y = _data(workload, records=batch * 16)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ordinary = workload.make()
    ordinary.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])

    with tempfile.TemporaryDirectory() as folder:
        ledger = keras_dp.PrivacyLedger.open(
            Path(folder) / "steps.ledger", dataset="synthetic"
        )
        private = keras_dp.PrivateModel(workload.make())
        query = keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=batch)
        private.compile(
            keras_dp.optimizers.DPSGD(0.1, query=query, ledger=ledger),
            loss,
            metrics=["accuracy"],
        )
        samples = keras_dp.sampling.PoissonBatches(
            (x, y), sampling_probability=batch / len(x)
        )

        def fit_privately() -> None:
            private.fit(samples, steps_per_epoch=steps, verbose=0)

        def fit_ordinarily() -> None:
            chosen = slice(0, min(steps, 16) * batch)
            epochs = -(-steps // 16)
            ordinary.fit(
                x[chosen], y[chosen], batch_size=batch, epochs=epochs, verbose=0
            )

        ordinary_steps = min(steps, 16) * -(-steps // 16)
        fit_privately()
        fit_ordinarily()
        private_times, ordinary_times = [], []
        for _ in range(turns):
            private_times.append(_seconds_per_step(fit_privately, steps))
            ordinary_times.append(
                _seconds_per_step(fit_ordinarily, ordinary_steps)
            )
        ledger.close()
    return private_times, ordinary_times


def main() -> None:
    """Prints one row per workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--model", choices=WORKLOADS, action="append")
    options = parser.parse_args()
    print("| model | batch | private ms | Keras ms | ratio, median (range) |")
    print("| --- | --- | --- | --- | --- |")
    for name in options.model or WORKLOADS:
        ours, keras_own = measure(WORKLOADS[name], options.turns)
        ratios = [a / b for a, b in zip(ours, keras_own, strict=True)]
        print(
            f"| {name} | {WORKLOADS[name].batch} "
            f"| {1e3 * statistics.median(ours):.1f} "
            f"| {1e3 * statistics.median(keras_own):.1f} "
            f"| {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
