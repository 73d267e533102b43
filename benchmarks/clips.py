"""What a clip gives at one epsilon.

    python benchmarks/clips.py adult --trainings 3

The tasks are `adult` (epsilon 1), `mnist-linear` and `mnist-cnn` (20,000
images, epsilon 3). Their data is in `$KERAS_DP_DATA`. All train by SGD with
momentum 0.9 at one learning rate, at delta = 1e-5. A row is the test accuracy
in percent: mean and deviation of the trainings.

It clips at four norms, with and without answers in units of the clip, and clips
automatically.
"""

import argparse
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers

import keras_dp
from keras_dp.dp_queries import DPQuery
from keras_dp.optimizers import DPSGD
from keras_dp.planning import calibrate_noise

DELTA, IMAGES = 1e-5, 20_000
# Round numbers near the means and deviations of the columns of Adult.
CENTRES = np.array([38, 189_664, 10, 1_079, 87, 40])
WIDTHS = np.array([14, 105_604, 2.6, 7_452, 403, 12])


class Task(NamedTuple):
    """A task, with all settings that its rows share."""

    epsilon: float
    epochs: int
    batch: int
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    hidden: list[dict[str, Any]]
    loss: keras.losses.Loss

    @property
    def probability(self) -> float:
        """The sampling probability."""
        return self.batch / len(self.train[0])

    @property
    def rounds(self) -> int:
        """The number of rounds of all epochs."""
        return self.epochs * self.rounds_per_epoch

    @property
    def rounds_per_epoch(self) -> int:
        """The number of rounds of an epoch."""
        return math.ceil(len(self.train[0]) / self.batch)

    def model(self) -> keras.Model:
        """Returns the network, new."""
        stack = [keras.layers.deserialize(each) for each in self.hidden]
        inputs = keras.Input(self.train[0].shape[1:])
        return keras.Sequential([inputs, *stack])


def adult(folder: Path) -> Task:
    """Returns the census task."""
    with np.load(folder / "adult.npz") as file:
        parts = {name: file[name] for name in file.files}

    def encoded(split: str) -> tuple[np.ndarray, np.ndarray]:
        numbers = (parts[f"x_num_{split}"] - CENTRES) / WIDTHS
        columns = [
            np.eye(size)[column]
            for size, column in zip(
                parts["cat_sizes"], parts[f"x_cat_{split}"].T, strict=True
            )
        ]
        x = np.concatenate([np.clip(numbers, -3, 3), *columns], axis=1)
        y = parts[f"y_{split}"][:, np.newaxis]
        return x.astype("float32"), y.astype("float32")

    hidden = [layers.Dense(32, activation="tanh"), layers.Dense(1)]
    return Task(
        1.0,
        10,
        2_048,
        encoded("train"),
        encoded("test"),
        [keras.layers.serialize(each) for each in hidden],
        keras.losses.BinaryCrossentropy(from_logits=True),
    )


def mnist(folder: Path, *, convolutions: bool) -> Task:
    """Returns the task on 20,000 images."""
    with np.load(folder / "mnist.npz") as file:
        parts = {name: file[name] for name in file.files}

    def scaled(split: str) -> tuple[np.ndarray, np.ndarray]:
        x, y = parts[f"x_{split}"], parts[f"y_{split}"]
        x = x[..., np.newaxis].astype("float32") / 127.5 - 1
        return x[:IMAGES], y[:IMAGES].astype("int32")

    stack: list[keras.Layer] = [layers.Flatten(), layers.Dense(10)]
    if convolutions:
        stack = [
            layers.Conv2D(16, 8, 2, padding="same", activation="tanh"),
            layers.MaxPooling2D(2, 1),
            layers.Conv2D(32, 4, 2, activation="tanh"),
            layers.MaxPooling2D(2, 1),
            layers.Flatten(),
            layers.Dense(32, activation="tanh"),
            layers.Dense(10),
        ]
    return Task(
        3.0,
        8,
        1_024,
        scaled("train"),
        scaled("test"),
        [keras.layers.serialize(each) for each in stack],
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )


def accuracy(task: Task, query: DPQuery, rate: float) -> float:
    """Trains once, and returns the test accuracy in percent."""
    model = task.model()
    private = keras_dp.PrivateModel(model)
    ledger = keras_dp.PrivacyLedger.in_memory(dataset="benchmark")
    optimizer = DPSGD(rate, momentum=0.9, query=query, ledger=ledger)
    private.compile(optimizer, loss=task.loss)
    samples = keras_dp.PoissonBatches(
        task.train,
        sampling_probability=task.probability,
        rounds_per_epoch=task.rounds_per_epoch,
    )
    private.fit(samples, epochs=task.epochs, verbose=0)
    logits = model.predict(task.test[0], batch_size=2_000, verbose=0)
    found = logits > 0 if logits.shape[1] == 1 else np.argmax(logits, axis=1)
    return 100 * float(np.mean(found == task.test[1]))


def clips(task: Task) -> Iterator[tuple[str, DPQuery]]:
    """Yields queries, each with its name."""
    noise = calibrate_noise(
        target_epsilon=task.epsilon,
        delta=DELTA,
        sampling_probability=task.probability,
        rounds=task.rounds,
    )

    def query(clip: float, **options: Any) -> DPQuery:
        return keras_dp.GaussianAverageQuery(
            clip, noise_multiplier=noise, denominator=task.batch, **options
        )

    for clip in (0.01, 0.1, 1.0, 10.0):
        yield f"clip {clip:g}", query(clip)
        yield f"clip {clip:g}, rescaled", query(clip, rescale=True)
    for gamma in (0.01, 1.0):
        yield f"automatic, gamma {gamma:g}", query(1.0, gamma=gamma)


def main() -> None:
    """Prints a row for each setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("task", choices=["adult", "mnist-linear", "mnist-cnn"])
    parser.add_argument("--trainings", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.4)
    parser.add_argument("--rows", nargs="+", help="only rows of these names")
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("KERAS_DP_DATA", "data")
    )
    options = parser.parse_args()
    if options.task == "adult":
        task = adult(options.data)
    else:
        task = mnist(options.data, convolutions=options.task == "mnist-cnn")
    print("| Row | Accuracy, % | Deviation |\n| --- | --- | --- |")
    for name, query in clips(task):
        if options.rows and name not in options.rows:
            continue
        found = []
        for training in range(options.trainings):
            keras.utils.set_random_seed(training)
            found.append(accuracy(task, query, options.rate))
        mean, deviation = np.mean(found), np.std(found)
        print(f"| {name} | {mean:.2f} | {deviation:.2f} |", flush=True)


if __name__ == "__main__":
    main()
