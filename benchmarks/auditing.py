"""What audits cost, and how near to the certified epsilon they come.

    python benchmarks/auditing.py tightness   # lower bounds over epsilon
    python benchmarks/auditing.py time        # canaries in a round, a check

Times are medians of rounds that alternate in one run, as ratios.
"""

import argparse
import statistics
import time
from typing import Any

import keras
import numpy as np

import keras_dp
from keras_dp.accountants import Fourier
from keras_dp.auditing import OneRun, PhantomCanaries, check
from keras_dp.planning import calibrate_noise

DELTA = 1e-5
# Sampling probability and rounds, of few large samples and of many small ones.
REGIMES = ((0.05, 200), (0.02, 1000), (0.25, 100), (1.0, 20))


def compiled(model: keras.Model, noise_multiplier: float, **loss: Any) -> Any:
    """Returns a private model around another."""
    private = keras_dp.PrivateModel(model)
    private.compile(
        keras_dp.DPSGD(
            0.1,
            ledger=keras_dp.PrivacyLedger.in_memory(dataset="benchmark"),
            query=keras_dp.GaussianAverageQuery(
                1.0, noise_multiplier=noise_multiplier, denominator=64
            ),
        ),
        **loss,
        private_metrics={},
    )
    return private


def tightness(canaries: int, epsilon: float) -> None:
    """Prints what share of epsilon each estimator finds."""
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=[1000, 8]).astype("float32")
    y = x[:, :1]
    print("q, rounds, noise | certified | Gaussian model | f-DP | one run")
    for probability, rounds in REGIMES:
        noise = calibrate_noise(
            target_epsilon=epsilon,
            delta=DELTA,
            sampling_probability=probability,
            rounds=rounds,
        )
        layers = [keras.Input((8,)), keras.layers.Dense(1)]
        private = compiled(keras.Sequential(layers), noise, loss="mse")
        phantom = PhantomCanaries(canaries)
        samples = keras_dp.PoissonBatches(
            (x, y), sampling_probability=probability, rounds_per_epoch=rounds
        )
        private.fit(samples, epochs=1, verbose=0, callbacks=[phantom])
        certified = Fourier().epsilon(private.optimizer.ledger, delta=DELTA)
        bound = OneRun().epsilon(phantom.scores, delta=DELTA)
        print(
            f"{probability}, {rounds}, {noise:.3g} | {certified:.3f} | "
            f"{bound.epsilon / certified:.2f}"
        )


def network() -> keras.Model:
    """Returns the network of the MNIST tutorial."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 8, strides=2, padding="same", activation="relu"),
            layers.MaxPool2D(2, 1),
            layers.Conv2D(32, 4, strides=2, activation="relu"),
            layers.MaxPool2D(2, 1),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )


class Clock(keras.callbacks.Callback):
    """Keeps the wall time of each round."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Starts."""
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops."""
        self.seconds.append(time.perf_counter() - self._start)


def times(canaries: int, turns: int) -> None:
    """Prints the time of a check, and of a round with canaries in it."""
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=[6000, 28, 28, 1]).astype("float32")
    y = numbers.integers(0, 10, 6000)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    samples = keras_dp.PoissonBatches(
        (x, y), sampling_probability=256 / 6000, rounds_per_epoch=40
    )
    private = compiled(network(), 1.1, loss=loss)
    start = time.perf_counter()
    report = check(private, samples)
    print(f"check: {time.perf_counter() - start:.1f} s, {report.passed=}")
    trainings = [compiled(network(), 1.1, loss=loss) for _ in range(2)]
    phantom, clocks = PhantomCanaries(canaries), (Clock(), Clock())
    for turn in range(turns):
        for training, clock, own in zip(
            trainings, clocks, ([], [phantom]), strict=True
        ):
            clock.seconds, kept = [], clock.seconds
            training.fit(samples, epochs=1, verbose=0, callbacks=[*own, clock])
            # The step is compiled in the first rounds.
            clock.seconds = kept + clock.seconds[3:]
        plain, audited = (statistics.median(c.seconds) for c in clocks)
        print(
            f"turn {turn + 1}: {1e3 * plain:.2f} ms a round, with canaries "
            f"{audited / plain:.3f} times that"
        )


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("tightness", "time"))
    parser.add_argument("--canaries", type=int, default=10_000)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--turns", type=int, default=4)
    chosen = parser.parse_args()
    if chosen.what == "tightness":
        tightness(chosen.canaries, chosen.epsilon)
    else:
        times(chosen.canaries, chosen.turns)


if __name__ == "__main__":
    main()
