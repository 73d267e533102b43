"""Every mechanism in turn, on the same network and data, and what it cost.

    python tutorials/mechanisms.py [--only joint,encoded] [--epochs 2]
    python tutorials/mechanisms.py --data mnist.npz

Trains on the embedded census data, or on MNIST given as an `.npz` file with
`x_train`, `y_train`, `x_test`, `y_test`. All mechanisms add noise of the same
multiplier; what they bound differs, and so does epsilon. Each run has a ledger
of its own, replayed at the end by the tightest accountant that can.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import keras_dp
from keras_dp import accountants
from keras_dp.dp_queries import (
    AdaptiveClipSumQuery,
    CorrelatedSumQuery,
    DiscretizedSumQuery,
    EncodedSumQuery,
    ErrorCorrectedQuery,
    JointClipQuery,
    KSDenoisedQuery,
    NestedQuery,
    NormalizedQuery,
    PreselectedVectors,
    QuantileAdaptiveClipSumQuery,
)
from keras_dp.ledger import (
    BinaryTree,
    GaussianNoise,
    NoiseDistribution,
    StudentTNoise,
)
from keras_dp.optimizers import DPAdam
from keras_dp.training import (
    PrivateLoss,
    PrivateMetric,
    mean_gradient_norms,
)

ADULT = Path(__file__).resolve().parent.parent / "data" / "adult.npz"
DELTA = 1e-5


def shared_out(
    clips: dict[str, float],
    weights: dict[str, float],
    *,
    noise_multiplier: float,
    batch: int,
) -> NestedQuery:
    """Returns averages that cost together as one of this noise multiplier.

    Args:
        clips: The bound of each group.
        weights: What the share of each group in the cost is proportional to.
        noise_multiplier: Of all groups together.
        batch: The expected number of records.
    """
    total = sum(weights.values())
    return NestedQuery(
        {
            group: keras_dp.GaussianAverageQuery(
                clip,
                noise_multiplier * clip * (total / weights[group]) ** 0.5,
                batch,
            )
            for group, clip in clips.items()
        }
    )


class Task(NamedTuple):
    """Data, and what a mechanism needs to know of it."""

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    classes: int
    batch: int
    noise_multiplier: float

    def make_model(self) -> keras.Model:
        """Returns a network with two kernels and two biases."""
        keras.utils.set_random_seed(0)
        features = self.train[0].shape[1:]
        return keras.Sequential(
            [
                keras.Input(features),
                keras.layers.Flatten(),
                keras.layers.Dense(32, "tanh", name="hidden"),
                keras.layers.Dense(self.classes, name="head"),
            ]
        )


def adult(file: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns features in [0, 1], and whether income exceeds 50,000 dollars."""
    columns = [np.log1p(file[f"x_num_{split}"]) / np.log1p(1e5)]
    for size, codes in zip(
        file["cat_sizes"], file[f"x_cat_{split}"].T, strict=True
    ):
        columns.append(np.eye(size)[codes])
    labels = file[f"y_{split}"].astype(np.int32)
    return np.concatenate(columns, axis=1).astype(np.float32), labels


def load(path: Path | None, batch: int, noise_multiplier: float) -> Task:
    """Returns the census data, or MNIST from a file."""
    if path is None:
        with np.load(ADULT) as file:
            splits = [adult(file, split) for split in ("train", "test")]
        return Task(*splits, 2, batch, noise_multiplier)
    with np.load(path) as file:
        data = {name: file[name] for name in file}
    return Task(
        (data["x_train"].astype(np.float32) / 255, data["y_train"]),
        (data["x_test"].astype(np.float32) / 255, data["y_test"]),
        10,
        batch,
        noise_multiplier,
    )


def mechanisms(
    task: Task, epochs: int = 1
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Returns by name what makes an optimizer's `query` and `groups`."""
    model = task.make_model()
    size = model.count_params()
    z, batch = task.noise_multiplier, float(task.batch)

    def norms() -> dict[str, float]:
        """Of gradients on noise: a first clip that no data was asked for."""
        noise = np.random.Generator(np.random.Philox(0))
        return mean_gradient_norms(
            model,
            loss(),
            noise.standard_normal([64, *task.train[0].shape[1:]]).astype("f4"),
            noise.integers(0, task.classes, 64),
            groups={"hidden": "hidden", "head": "head"},
        )

    def average(query: keras_dp.dp_queries.DPQuery) -> dict[str, Any]:
        return {"query": NormalizedQuery(query, batch)}

    def planned() -> dict[str, Any]:
        layers = {"hidden": "hidden", "head": "head"}
        sizes = {each: model.get_layer(each).count_params() for each in layers}
        query = shared_out(norms(), sizes, noise_multiplier=z, batch=batch)
        return {"query": query, "groups": layers}

    def adaptive() -> dict[str, Any]:
        layers = {
            name: NormalizedQuery(
                AdaptiveClipSumQuery(
                    initial_l2_norm_clip=norm,
                    noise_multiplier=z * 2**0.5,
                    norm_noise_multiplier=10.0,
                    expected_num_records=batch,
                ),
                batch,
            )
            for name, norm in norms().items()
        }
        return {
            "query": keras_dp.dp_queries.NestedQuery(layers),
            "groups": {name: name for name in layers},
        }

    gaussian = keras_dp.GaussianAverageQuery(1.0, z, batch)
    discretized = NormalizedQuery(
        DiscretizedSumQuery(threshold=0.01, l2_norm_clip=1.0, stddev=z), batch
    )

    def encoded(added: NoiseDistribution) -> dict[str, Any]:
        vectors = PreselectedVectors(
            GaussianNoise(1.0), count=100, size=size, l2_norm=1.0
        )
        return average(EncodedSumQuery(vectors, added))

    return {
        "gaussian": lambda: {"query": gaussian},
        "joint": lambda: {
            "query": JointClipQuery([1.0, 1.0, 1.0, 1.0], 1.0, z, batch)
        },
        "groups": planned,
        "discretized": lambda: {"query": discretized},
        "corrected": lambda: {
            "query": ErrorCorrectedQuery(discretized, threshold=0.5 * z / batch)
        },
        "encoded": lambda: encoded(GaussianNoise(z)),
        "student": lambda: encoded(StudentTNoise(z, df=9.0)),
        "denoised": lambda: {"query": KSDenoisedQuery(gaussian)},
        "adaptive": adaptive,
        "quantile": lambda: average(
            QuantileAdaptiveClipSumQuery(
                initial_l2_norm_clip=1.0,
                noise_multiplier=z,
                target_unclipped_quantile=0.5,
                learning_rate=0.2,
                clipped_count_stddev=task.batch / 20,
                expected_num_records=batch,
            )
        ),
        "tree": lambda: average(
            CorrelatedSumQuery(
                BinaryTree(),
                1.0,
                8 * z,
                epochs * round(len(task.train[0]) / task.batch),
                [tf.TensorSpec(w.shape) for w in model.weights],
                restart_after=32,
            )
        ),
    }


def loss() -> keras.losses.Loss:
    """Returns the loss of all runs."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Trained(NamedTuple):
    """A training that ended: what it reached, and what it cost."""

    accuracy: float
    epsilon: float
    accountant: str
    seconds: float
    rounds: int
    history: dict[str, list[float]]


def train(
    task: Task,
    options: dict[str, Any],
    epochs: int,
    private_metrics: dict[str, PrivateMetric] | None = None,
) -> Trained:
    """Trains by one mechanism, under a ledger of its own."""
    ledger = keras_dp.PrivacyLedger.in_memory(dataset="mechanisms")
    private = keras_dp.PrivateModel(task.make_model())
    private.compile(
        DPAdam(5e-3, ledger=ledger, **options),
        loss=loss(),
        metrics=["accuracy"],
        private_metrics=private_metrics,
    )
    samples = keras_dp.sampling.PoissonBatches(
        task.train, sampling_probability=task.batch / len(task.train[0])
    )
    start = time.perf_counter()
    history = private.fit(samples, epochs=epochs, verbose=0).history
    seconds = time.perf_counter() - start
    accuracy = private.evaluate(*task.test, verbose=0)[1]
    best, *_ = accountants.available_accountants(ledger)
    epsilon = best.epsilon(ledger, delta=DELTA)
    return Trained(accuracy, epsilon, best.name, seconds, len(ledger), history)


def private_loss(task: Task) -> PrivateLoss:
    """Returns the loss as a query of its own, clipped at twice chance."""
    clip = max(1.0, 2 * math.log(task.classes))
    return PrivateLoss(
        keras_dp.GaussianAverageQuery(clip, 20 * clip, task.batch)
    )


def line(name: str, trained: Trained) -> str:
    """Returns a line of the table."""
    clips = [
        f"{key}={values[-1]:.3g}"
        for key, values in trained.history.items()
        if key.endswith("clip")
    ]
    return (
        f"{name:12} {trained.accuracy:8.2%} {trained.epsilon:10.3f} "
        f"{trained.accountant:>9} "
        f"{1000 * trained.seconds / trained.rounds:8.1f}  {' '.join(clips)}"
    )


def main() -> None:
    """Prints one line per mechanism."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--noise-multiplier", type=float, default=1.0)
    options = parser.parse_args()
    task = load(options.data, options.batch, options.noise_multiplier)
    known = mechanisms(task, options.epochs)
    names = options.only.split(",") if options.only else list(known)
    print("mechanism    accuracy    epsilon        by ms/round  clips")
    metrics = {"loss": private_loss(task)}
    for name in names:
        trained = train(task, known[name](), options.epochs, metrics)
        print(line(name, trained))


if __name__ == "__main__":
    main()
