"""Trains models on some virtual devices, for tests that compare them.

Run as a process of its own, because devices are fixed when TensorFlow starts:
`python replica_training.py FILE` writes arrays, each named
`REPLICAS/SCENARIO/WHAT`.
"""

import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_dp.dp_queries import (
    GaussianAverageQuery,
    NestedQuery,
    NormalizedQuery,
    QuantileAdaptiveClipSumQuery,
)
from keras_dp.ledger import BandedToeplitz
from keras_dp.noise import reproducible
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.sampling import PoissonBatches
from keras_dp.training.metrics.private_metrics import PrivateLoss
from tests.private_models import correlated_average, private_of
from tests.slow_loop import flat

FEATURES, RECORDS = 6, 256
# Enough coordinates to tell one stddev from twice of it beyond doubt.
NOISE_UNITS = 2000


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, FEATURES)).astype("float32")
    return x, (x[:, :1] > 0).astype("float32")


def stack(*hidden):
    head = layers.Dense(1, activation="sigmoid")
    return keras.Sequential([keras.Input((FEATURES,)), *hidden, head])


def dense():
    hidden = layers.Dense(8, activation="relu", kernel_regularizer="l2")
    return stack(hidden)


def normalized():
    return stack(layers.Dense(8), layers.BatchNormalization())


def with_dropout():
    return stack(layers.Dense(8), layers.Dropout(0.5))


def adam():
    return keras.optimizers.Adam(0.01)


def average(noise=0.0, clip=1.0):
    return GaussianAverageQuery(clip, noise, denominator=32)


class Training:
    """One model, trained under the strategy."""

    def __init__(
        self, strategy, model=dense, query=None, inner=adam, **options
    ):
        keras.utils.set_random_seed(1)
        self.strategy = strategy
        self.created = []
        with strategy.scope(), self.noting():
            self.model = model()
            self.private = private_of(
                self.model,
                query or average(),
                kind=DPOptimizer,
                rate=inner(),
                seed=3,
                **{
                    "loss": "binary_crossentropy",
                    "metrics": ["accuracy"],
                    **options,
                },
            )

    def noting(self):
        """Returns a context in which variables that are created are noted."""

        def create(following, **options):
            self.created.append(following(**options))
            return self.created[-1]

        return tf.variable_creator_scope(create)

    def fit(self, physical_batch_size=16, **options):
        batches = PoissonBatches(
            data(),
            sampling_probability=0.125,
            physical_batch_size=physical_batch_size,
            seed=5,
            **options,
        )
        with self.noting():
            self.history = self.private.fit(batches, epochs=2, verbose=0)
        return self.results()

    def results(self):
        """Returns weights, how far replicas are apart, logs and rounds."""
        apart = 0
        for variable in self.created:
            if variable.synchronization == tf.VariableSynchronization.ON_READ:
                continue  # Metrics and sums, of which each has its own.
            copies = self.strategy.experimental_local_results(variable)
            first = copies[0].numpy()
            apart += sum(not np.array_equal(first, c.numpy()) for c in copies)
        return {
            "weights": flat(self.model),
            "apart": np.int64(apart),
            "variables": np.int64(len(self.created)),
            "rounds": np.int64(len(self.private.optimizer.ledger)),
            "traces": np.int64(self.private.trace_count),
            **{
                f"log_{name}": np.array(values)
                for name, values in self.history.history.items()
            },
        }


NOISED = average(noise=0.8)


# Called with a strategy, each returns what its training left.
SCENARIOS = {
    "correlated": lambda on: Training(
        on,
        query=correlated_average(
            dense(), BandedToeplitz((1.0, 0.5, 0.25)), 0.8, 16, 32.0
        ),
    ).fit(),
    "adaptive_in_groups": lambda on: Training(
        on,
        query=NestedQuery(
            {
                "first": NormalizedQuery(
                    QuantileAdaptiveClipSumQuery(1.0, 0.5, 0.5, 0.2, 2.0, 32.0),
                    32.0,
                ),
                "rest": average(0.4, 0.5),
            }
        ),
        groups={"first": "kernel", "rest": ...},
    ).fit(),
    "beside": lambda on: Training(
        on,
        model=normalized,
        query=average(0.5),
        batch_statistics=average(0.5),
        private_metrics={"loss": PrivateLoss(average(0.1))},
    ).fit(),
    "dropout": lambda on: Training(on, model=with_dropout).fit(),
    # 15 records of three rows, of which two replicas take 8 with padding.
    "noised_parts_mapped": lambda on: Training(
        on, query=NOISED, private_metrics={"loss": PrivateLoss(average(0.1))}
    ).fit(15, map=blurred(), views=3),
    "evaluated": lambda on: evaluated(on),
    "noise_alone": lambda on: noise_alone(on),
}


# Replicas draw their own, so that there is nothing to compare.
NOT_ON_ONE = {"dropout"}


def blurred():
    """Returns a map that draws, as augmentation of images does."""
    noise = layers.GaussianNoise(0.5)
    return lambda x, y: (noise(x, training=True), y)


def evaluated(strategy):
    """Records in order, of which the last batch is not full."""
    training = Training(strategy, checks=4)
    batches = PoissonBatches(
        tuple(part[:221] for part in data()),
        sampling_probability=0.125,
        physical_batch_size=40,
        seed=5,
        map=lambda x, y: (2 * x, y),
    )
    training.history = training.private.fit(
        batches, validation_data=batches, epochs=2, verbose=0
    )
    logs = training.private.evaluate(batches, return_dict=True, verbose=0)
    outputs = training.private.predict(batches, verbose=0)
    assert outputs.shape == (221, 1)
    training.history.history |= {
        "last": [logs["loss"], logs["accuracy"]],
        "outputs": list(outputs),
    }
    return training.results()


def noise_alone(strategy):
    """One update of noise: nothing of the records passes a clip of 0."""
    training = Training(
        strategy,
        model=lambda: keras.Sequential(
            [keras.Input((FEATURES,)), layers.Dense(NOISE_UNITS)]
        ),
        query=GaussianAverageQuery(0.0, 3.0, denominator=1.0),
        inner=lambda: keras.optimizers.SGD(1.0),
        loss="mse",
    )
    before = flat(training.model)
    x, _ = data()
    training.history = keras.callbacks.History()
    training.history.history = {}
    training.private.train_on_batch(x[:8], np.zeros([8, NOISE_UNITS]))
    return {**training.results(), "steps": flat(training.model) - before}


def main(path: str) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    strategies = {
        1: tf.distribute.get_strategy(),
        2: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    }
    results = {}
    for replicas, strategy in strategies.items():
        for name in SCENARIOS:
            if replicas > 1 or name not in NOT_ON_ONE:
                for key, value in SCENARIOS[name](strategy).items():
                    results[f"{replicas}/{name}/{key}"] = value
    np.savez(path, **results)


if __name__ == "__main__":
    with reproducible():
        main(*sys.argv[1:])
