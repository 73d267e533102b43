"""A private GAN, in a training loop of its own.

    python tutorials/gan.py [--rounds 2000] [--out out/gan]

The records are points on a ring, made here. The discriminator learns to tell
them, labelled 1, from generated points, labelled 0: the gradients of records
are private, and those of generated points ordinary. The generator learns from
the discriminator alone. Nothing but the private gradients has seen a record,
so that the ledger holds all that the run cost.
"""

import argparse
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import keras_dp
from keras_dp.planning import calibrate_noise
from keras_dp.reporting import make_report

RECORDS, EXPECTED_BATCH = 20_000, 500
TARGET_EPSILON, DELTA = 2.9, 1e-5
RADIUS, THICKNESS = 1.0, 0.05
LATENT = 4
LOSS = keras.losses.BinaryCrossentropy(from_logits=True)


def ring(count: int) -> np.ndarray:
    """Returns points on a ring around the origin."""
    generator = np.random.default_rng(0)
    angles = generator.uniform(0, 2 * np.pi, count)
    radii = generator.normal(RADIUS, THICKNESS, count)
    points = radii * np.stack([np.cos(angles), np.sin(angles)])
    return points.T.astype("float32")


def network(inputs: int, outputs: int, name: str) -> keras.Sequential:
    """Returns a small network, new."""
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            keras.layers.Dense(64, activation="leaky_relu"),
            keras.layers.Dense(64, activation="leaky_relu"),
            keras.layers.Dense(outputs),
        ],
        name=name,
    )


class Gan:
    """A generator and a discriminator, each with its ordinary optimizer."""

    def __init__(self) -> None:
        self.generator = network(LATENT, 2, "generator")
        self.discriminator = network(2, 1, "discriminator")
        self._optimizers = [
            keras.optimizers.Adam(rate, beta_1=0.5) for rate in (5e-4, 1e-3)
        ]
        self._latent = keras.random.SeedGenerator()

    def points(self, count: int) -> tf.Tensor:
        """Returns generated points, shape `[count, 2]`."""
        return self.generator(
            keras.random.normal((count, LATENT), seed=self._latent)
        )

    @tf.function
    def update(self, answer: list[tf.Tensor]) -> None:
        """Moves both networks.

        Args:
            answer: The private gradients of the discriminator on records.
        """
        points = self.points(EXPECTED_BATCH)
        zeros = tf.zeros([EXPECTED_BATCH, 1])
        weights = self.discriminator.trainable_variables
        with tf.GradientTape() as tape:
            loss = LOSS(zeros, self.discriminator(points))
        generated = tape.gradient(loss, [w.value for w in weights])
        both = [
            own + of_data
            for own, of_data in zip(generated, answer, strict=True)
        ]
        self._optimizers[1].apply(both, weights)

        weights = self.generator.trainable_variables
        with tf.GradientTape() as tape:
            logits = self.discriminator(self.points(EXPECTED_BATCH))
            loss = LOSS(zeros + 1, logits)
        gradients = tape.gradient(loss, [w.value for w in weights])
        self._optimizers[0].apply(gradients, weights)

    def share_on_the_ring(self, count: int = 10_000) -> float:
        """Returns how many of the generated points are close to the ring."""
        radii = np.linalg.norm(self.points(count), axis=1)
        return float(np.mean(np.abs(radii - RADIUS) < 4 * THICKNESS))

    def sectors_reached(self, count: int = 10_000) -> int:
        """Returns how many of 12 sectors have 2 % of the generated points."""
        x, y = np.transpose(self.points(count))
        shares = np.histogram(np.arctan2(y, x), 12, (-np.pi, np.pi))[0] / count
        return int(np.sum(shares > 0.02))


def main() -> None:
    """Trains, and prints the likeness and the bill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("out/gan"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"run-{time.time_ns()}.ledger"  # A new run each.

    probability = EXPECTED_BATCH / RECORDS
    noise_multiplier = calibrate_noise(
        target_epsilon=TARGET_EPSILON,
        delta=DELTA,
        sampling_probability=probability,
        rounds=options.rounds,
    )
    gan = Gan()
    samples = keras_dp.PoissonBatches(
        (ring(RECORDS), np.ones([RECORDS, 1], "float32")),
        sampling_probability=probability,
    )
    with keras_dp.PrivacyLedger.open(path, dataset="ring") as ledger:
        gradients = keras_dp.PrivateGradients(
            gan.discriminator,
            LOSS,
            query=keras_dp.GaussianAverageQuery(
                l2_norm_clip=0.5,
                noise_multiplier=noise_multiplier,
                denominator=EXPECTED_BATCH,
            ),
            ledger=ledger,
        )
        start = time.perf_counter()
        for answer in gradients.over(samples, rounds=options.rounds):
            gan.update(answer)
        seconds = time.perf_counter() - start
        print(
            f"Trained in {seconds:.0f} s. Of the generated points "
            f"{gan.share_on_the_ring():.0%} are on the ring, in "
            f"{gan.sectors_reached()} of 12 sectors."
        )
        print(make_report(ledger, delta=DELTA))
    print(f"Ledger: {path}")


if __name__ == "__main__":
    main()
