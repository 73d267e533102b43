"""Faults planted in a training with TensorFlow Privacy, and what it says.

It has no check of a training: what it refuses or warns of while it trains is
all there is. Its `privacy_tests`, attacks on a trained model, are not in
the package that pip installs.
"""

import contextlib
import json
import os
import warnings
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tensorflow_privacy as tfp
from tensorflow_privacy.privacy.optimizers import (
    dp_optimizer_keras_vectorized as vectorized,
)

NUMBERS = np.random.default_rng(0)
X = NUMBERS.normal(size=[200, 3]).astype("float32")
Y = X.sum(axis=1, keepdims=True)
NOISE, BATCH, EPOCHS, DELTA = 1.0, 20, 5, 1e-5


class CentredOnBatch(tf.keras.layers.Layer):
    """A layer in which records interact."""

    def call(self, inputs: Any) -> Any:
        """Subtracts the mean of the batch."""
        return inputs - tf.reduce_mean(inputs, axis=0)


class MovingMean(tf.keras.layers.Layer):
    """A layer whose state follows its inputs."""

    def build(self, shape: Any) -> None:
        """Makes the state."""
        self.mean = self.add_weight(shape=(shape[-1],), trainable=False)

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Moves the state in training."""
        if training:
            mean = tf.reduce_mean(inputs, axis=0)
            self.mean.assign(0.9 * self.mean + 0.1 * mean)
        return inputs


class LossOverBatch(tf.keras.losses.Loss):
    """A loss in which records interact."""

    def call(self, targets: Any, outputs: Any) -> Any:
        """Weighs each loss by the mean of all."""
        apart = tf.reduce_mean(tf.square(targets - outputs), axis=1)
        return apart * tf.reduce_mean(apart)


def tools(layer: Any = None, loss: Any = None, told: float = NOISE) -> str:
    """Returns whether a training is refused, or warned of."""
    layers = [layer] if layer is not None else []
    layers += [tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(1)]
    none = tf.keras.losses.Reduction.NONE
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        model = tf.keras.Sequential(layers)
        optimizer = tfp.VectorizedDPKerasSGDOptimizer(
            1.0, NOISE, learning_rate=0.1
        )
        loss = loss or tf.keras.losses.MeanSquaredError(reduction=none)
        try:
            model.compile(optimizer, loss)
            model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
        except Exception as error:  # noqa: BLE001 - any refusal counts.
            return f"training ({type(error).__name__})"
    tfp.compute_dp_sgd_privacy_statement(len(X), BATCH, EPOCHS, told, DELTA)
    return "warning" if heard else "no"


def last_unclipped(gradients: Any, clip: float) -> Any:
    """Clips all variables but the last."""
    norm = tf.linalg.global_norm(gradients)
    clipped = [g / tf.maximum(norm / clip, 1.0) for g in gradients]
    return [*clipped[:-1], gradients[-1]]


def noise(change: Any) -> Any:
    """Returns a patch of the generator of noise."""
    owner = tf.random
    return mock.patch.object(owner, "normal", change(owner.normal))


def main() -> None:
    """Prints what is found of each fault."""
    none = tf.keras.losses.Reduction.NONE
    plain: Any = contextlib.nullcontext()
    halved = noise(lambda f: lambda shape, stddev: f(shape, stddev=stddev / 2))
    again = noise(
        lambda f: (
            lambda shape, stddev: tf.random.stateless_normal(
                shape, [0, 0], stddev=stddev
            )
        )
    )
    unclipped = mock.patch.object(
        vectorized, "clip_gradients_vmap", last_unclipped
    )
    plants = {
        "none": (plain, {}),
        "noise is halved": (halved, {}),
        "a seed is used in every round": (again, {}),
        "the last variable is not clipped": (unclipped, {}),
        # So it always is, and its batches are always of one size.
        "the sum is divided by the number of records": (plain, {}),
        "samples have a fixed size": (plain, {}),
        "a layer computes over the batch": (
            plain,
            {"layer": CentredOnBatch()},
        ),
        "a loss computes over the batch": (
            plain,
            {"loss": LossOverBatch(none)},
        ),
        "the state of a layer follows its inputs": (
            plain,
            {"layer": MovingMean()},
        ),
        "the ledger holds twice the noise": (plain, {"told": 2 * NOISE}),
    }
    found = {}
    for name, (plant, options) in plants.items():
        with plant:
            found[name] = tools(**options)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
