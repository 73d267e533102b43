"""Accuracy of correlated beside independent noise, on four tasks.

    python benchmarks/correlated.py accuracy --tasks federated --trainings 5

`mnist` is two convolutions on images of half the size. `cifar10` is a linear
layer on wavelet features, which are computed once and kept in the folder of the
results. `gpt2` is the classifier of `tutorials/fine_tuning.py` by LoRA, whose
language model is trained once. `federated` has 3,000 users with 20 digits each,
who send one gradient (FedSGD); users are the units. All but `gpt2` are trained
by SGD with momentum. Each is at one rate, the same for all noise.

A training is a line of `FOLDER/TASK.jsonl`. A command that was interrupted goes
on with the trainings that are missing. The data is in `$KERAS_DP_DATA`.
"""

import argparse
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_dp
from benchmarks import accuracy as board
from keras_dp.dp_queries import (
    CorrelatedSumQuery,
    DPQuery,
    GaussianSumQuery,
    NormalizedQuery,
)
from keras_dp.ledger import Strategy
from keras_dp.planning import (
    calibrate_correlated_noise,
    calibrate_noise,
    optimize_strategy,
)
from keras_dp.sampling import CyclicPoissonBatches, PoissonBatches, Sampler

DELTA = 1e-5
Pair = tuple[np.ndarray, np.ndarray]


class Task(NamedTuple):
    """A model and its data.

    Attributes:
        model: Returns the model, new; its last layer has logits, or that of one
            label.
        train: Inputs and labels; a row is a unit.
        test: The same.
        batch: The expected number of units in a round.
        epochs: Passes over the training data.
        optimizer: Returns the optimizer inside the private one.
        unit: The unit of the ledger.
    """

    model: Callable[[], keras.Model]
    train: Pair
    test: Pair
    batch: int
    epochs: int
    optimizer: Callable[[], keras.optimizers.Optimizer]
    unit: str = "example"


def momentum(rate: float) -> Callable[[], keras.optimizers.Optimizer]:
    """Returns what makes SGD with momentum 0.9."""
    return functools.partial(keras.optimizers.SGD, rate, momentum=0.9)


def digits() -> tuple[Pair, Pair]:
    """Returns MNIST at half its width and height, pixels in [-1, 1]."""

    def halved(pair: Pair) -> Pair:
        parts = pair[0].reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4))
        return parts[..., np.newaxis], pair[1]

    train, test = board.images("mnist.npz")
    return halved(train), halved(test)


def mnist(kept: Path) -> Task:
    """Digits, by two convolutions."""
    train, test = digits()

    def network() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((14, 14, 1)),
                layers.Conv2D(16, 5, 2, padding="same", activation="tanh"),
                layers.Conv2D(32, 3, 2, padding="same", activation="tanh"),
                layers.Flatten(),
                layers.Dense(10),
            ]
        )

    return Task(network, train, test, 600, 5, momentum(1.0))


def cifar10(kept: Path) -> Task:
    """Objects, by a linear layer on wavelet features of length 10."""
    path = kept / "cifar10_features.npz"
    if not path.exists():
        (train, y_train), (test, y_test) = board.cifar()
        np.savez(
            path,
            x_train=_wavelets(train),
            y_train=y_train,
            x_test=_wavelets(test),
            y_test=y_test,
        )
    with np.load(path) as file:
        train, test = (
            (file[f"x_{split}"].astype("float32"), file[f"y_{split}"])
            for split in ("train", "test")
        )
    network = functools.partial(board.linear, 10, train[0].shape[1:])
    return Task(network, train, test, 1000, 10, momentum(1.0))


def _wavelets(images: np.ndarray) -> np.ndarray:
    """Returns roots of wavelet features, means of 2 by 2 places, `[n, 3888]`.

    Each has length 10. Colors are as in `benchmarks/accuracy.py`.
    """
    network = keras.Sequential(
        [keras.Input((32, 32, 3)), keras_dp.layers.Scattering2D(J=2, L=8)]
    )
    found = []
    for some in np.array_split(images, len(images) // 1000):
        yuv = tf.image.rgb_to_yuv((some + 1) / 2)
        parts = network.predict(yuv, batch_size=100, verbose=0)
        parts = np.sign(parts) * np.sqrt(np.abs(parts))
        n, height, width, channels = parts.shape
        parts = parts.reshape(n, height // 2, 2, width // 2, 2, channels)
        flat = parts.mean(axis=(2, 4)).reshape(n, -1)
        found.append(10 * flat / np.linalg.norm(flat, axis=1)[:, None])
    return np.concatenate(found).astype("float16")


def gpt2(kept: Path) -> Task:
    """Spam, by LoRA on a small GPT-2 that learned from public text."""
    from tutorials import fine_tuning

    settings = fine_tuning.Settings()
    public, *both = fine_tuning.load(Path(os.environ["KERAS_DP_DATA"]))
    train, test = ((x.tokens, x.labels[:, np.newaxis]) for x in both)
    path = kept / "gpt2.weights.h5"
    if not path.exists():
        network = fine_tuning.backbone(settings)
        fine_tuning.learn_language(network, public, settings)
        network.save_weights(path)

    def network() -> keras.Model:
        found = fine_tuning.backbone(settings)
        found.load_weights(path)
        found.enable_lora(8)
        return fine_tuning.classifier(found)

    optimizer = functools.partial(keras.optimizers.Adam, 2e-2)
    return Task(network, train, test, settings.batch, 16, optimizer)


def federated(kept: Path) -> Task:
    """Digits of 3,000 users, by a network whose gradient a user averages."""

    def of_users(pair: Pair) -> Pair:
        x, y = pair
        return x.reshape(-1, 20, 196), y.reshape(-1, 20)

    train, test = map(of_users, digits())

    def network() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((20, 196)),
                layers.Dense(64, activation="tanh"),
                layers.Dense(10),
            ]
        )

    return Task(network, train, test, 150, 10, momentum(0.5), "user")


TASKS: dict[str, Callable[[Path], Task]] = {
    each.__name__: each for each in (mnist, cifar10, gpt2, federated)
}


# The number of bands, and of classes.
METHODS: dict[str, int | None] = {
    "independent": None,
    "4 bands": 4,
    "16 bands": 16,
}


def print_accuracies(arguments: argparse.Namespace) -> None:
    """Trains what is missing, and prints the test accuracies in percent."""
    folder = Path(arguments.results)
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.tasks:
        path = folder / f"{name}.jsonl"
        path.touch()
        task = TASKS[name](folder)
        for method in arguments.methods:
            for epsilon in arguments.epsilons:
                _row(task, path, method, epsilon, arguments.trainings)


def _row(
    task: Task, path: Path, method: str, epsilon: float, trainings: int
) -> None:
    lines = path.read_text("utf-8").splitlines()
    scores = [
        each["accuracy"]
        for each in map(json.loads, lines)
        if (each["method"], each["epsilon"]) == (method, epsilon)
    ]
    if len(scores) < trainings:
        settings = _settings(task, METHODS[method], epsilon)
    while len(scores) < trainings:
        scores.append(_accuracy(task, *settings))
        found = {"method": method, "epsilon": epsilon, "noise": settings[0]}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**found, "accuracy": scores[-1]}) + "\n")
    print(
        f"{path.stem}, {method}, epsilon {epsilon:g}: {np.mean(scores):.2f} "
        f"({min(scores):.2f}-{max(scores):.2f}), {len(scores)} trainings",
        flush=True,
    )


def _rounds(task: Task) -> int:
    return task.epochs * (len(task.train[1]) // task.batch)


def _settings(
    task: Task, method: int | None, epsilon: float
) -> tuple[float, Sampler, Strategy | None]:
    """Returns the noise multiplier, the sampler and the strategy."""
    rounds, records = _rounds(task), len(task.train[1])
    share = task.batch / records
    target: dict[str, float] = {"target_epsilon": epsilon, "delta": DELTA}
    if method is None:
        z = calibrate_noise(sampling_probability=share, rounds=rounds, **target)
        return z, PoissonBatches(task.train, sampling_probability=share), None
    options: dict[str, Any] = {
        "classes": method,
        "sampling_probability": min(1.0, share * method),
    }
    strategy = optimize_strategy(method, rounds)
    z = calibrate_correlated_noise(strategy, rounds, **options, **target)
    return z, CyclicPoissonBatches(task.train, **options), strategy


def _accuracy(
    task: Task, z: float, sampler: Sampler, strategy: Strategy | None
) -> float:
    """Trains once, and returns the test accuracy in percent."""
    model, rounds = task.model(), _rounds(task)
    specs = [tf.TensorSpec(v.shape) for v in model.trainable_variables]
    query: DPQuery = GaussianSumQuery(1.0, noise_multiplier=z)
    if strategy is not None:
        query = CorrelatedSumQuery(strategy, 1.0, z, rounds, specs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if model.output_shape[-1] == 1:
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
    private = keras_dp.PrivateModel(model, self_check_examples=0)
    private.compile(
        keras_dp.DPOptimizer(
            task.optimizer(),
            query=NormalizedQuery(query, task.batch),
            ledger=keras_dp.PrivacyLedger.in_memory(
                dataset="benchmark", unit=task.unit
            ),
        ),
        loss,
    )
    private.fit(sampler, epochs=1, steps_per_epoch=rounds, verbose=0)
    x, y = task.test
    outputs = model.predict(x, batch_size=500, verbose=0)
    if outputs.shape[-1] == 1:
        return float(100 * np.mean((outputs > 0) == y))
    return float(100 * np.mean(outputs.argmax(axis=-1) == y))
