"""How fast each noise family is drawn, compiled by XLA and not.

The ways are timed in turn, in one process, so that the load of the machine
meets both alike; the ratio is the median over the turns. `TF normal` is
TensorFlow's own, for comparison.

    python benchmarks/noise_samplers.py [--size 4194304] [--turns 15]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_dp.dp_queries import noise_samplers
from keras_dp.ledger.noise_families import (
    CauchyNoise,
    GaussianNoise,
    HyperbolicSecantNoise,
    LaplaceNoise,
    LogisticNoise,
    StudentTNoise,
)
from keras_dp.ledger.variance_gamma_noise import VarianceGammaNoise

FAMILIES = {
    "Gaussian": GaussianNoise(1.0),
    "Student-t 9": StudentTNoise(1.0, 9.0),
    "Laplace": LaplaceNoise(1.0),
    "Cauchy": CauchyNoise(1.0),
    "logistic": LogisticNoise(1.0),
    "sech": HyperbolicSecantNoise(1.0),
    "variance-gamma 2": VarianceGammaNoise(1.0, 2),
}


def _samplers() -> dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]]:
    found: dict[str, Any] = {
        "TF normal": lambda like, seed: tf.random.stateless_normal(
            tf.shape(like), seed, dtype=like.dtype, alg="philox"
        )
    }
    for name, noise in FAMILIES.items():
        found[name] = lambda like, seed, noise=noise: noise_samplers.sample(
            noise, like, seed
        )
    return found


def _seconds(function: Any, like: tf.Tensor, turn: int) -> float:
    start = time.perf_counter()
    function(like, tf.constant([turn, 1], tf.int64)).numpy()
    return time.perf_counter() - start


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2**22)
    parser.add_argument("--turns", type=int, default=15)
    arguments = parser.parse_args()
    print("| family | dtype | M/s | M/s, XLA | time XLA / not | least, most |")
    print("|" + " --- |" * 6)
    for dtype in (tf.float32, tf.float64):
        like = tf.zeros([arguments.size], dtype)
        for name, sampler in _samplers().items():
            ways = [
                tf.function(sampler, jit_compile=compiled)
                for compiled in (False, True)
            ]
            for way in ways:
                _seconds(way, like, -1)  # Traces and compiles.
            times = [
                [_seconds(way, like, turn) for way in ways]
                for turn in range(arguments.turns)
            ]
            plain, compiled = (
                arguments.size / statistics.median(each) / 1e6
                for each in zip(*times, strict=True)
            )
            ratios = [xla / plain_ for plain_, xla in times]
            print(
                f"| {name} | {dtype.name} | {plain:.0f} | {compiled:.0f} | "
                f"{statistics.median(ratios):.2f} | "
                f"{min(ratios):.2f}, {max(ratios):.2f} |"
            )


if __name__ == "__main__":
    main()
