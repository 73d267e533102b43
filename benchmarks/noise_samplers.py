"""How fast each noise family is drawn, compiled by XLA and not.

The ways are timed in turn, in one process, so that the load of the machine
meets both alike; the ratio is the median over the turns. `TF normal` is
TensorFlow's own, for comparison.

    python benchmarks/noise_samplers.py [--size 4194304] [--turns 15]

With `--largest 5e8` it prints instead the largest of so many normal variables
of TensorFlow's and of ours, and what is to be expected of them.

    python benchmarks/noise_samplers.py --largest 5e8
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from scipy import special

from keras_dp.ledger.events.noise_families import (
    GaussianNoise,
    LaplaceNoise,
    StudentTNoise,
)
from keras_dp.noise import samplers

FAMILIES = {
    "Gaussian": GaussianNoise(1.0),
    "Student-t 9": StudentTNoise(1.0, 9.0),
    "Laplace": LaplaceNoise(1.0),
    "Cauchy": StudentTNoise(1.0, 1.0),
}


def _samplers() -> dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]]:
    found: dict[str, Any] = {
        "TF normal": lambda like, seed: tf.random.stateless_normal(
            tf.shape(like), seed, dtype=like.dtype, alg="philox"
        )
    }
    for name, noise in FAMILIES.items():
        found[name] = lambda like, seed, noise=noise: samplers.sample(
            noise, like, seed
        )
    return found


def _seconds(function: Any, like: tf.Tensor, turn: int) -> float:
    start = time.perf_counter()
    function(like, tf.constant([turn, 1], tf.int64)).numpy()
    return time.perf_counter() - start


def _print_largest(draws: float, size: int) -> None:
    like = tf.zeros([size], tf.float32)
    turns = math.ceil(draws / size)
    for name in ("TF normal", "Gaussian"):
        sampler = tf.function(_samplers()[name])
        largest = max(
            float(
                tf.reduce_max(
                    tf.abs(sampler(like, tf.constant([turn, 2], tf.int64)))
                )
            )
            for turn in range(turns)
        )
        print(f"{name}: largest of {turns * size:,} draws {largest:.3f}")
    median = -special.ndtri(-math.expm1(math.log(0.5) / (turns * size)) / 2)
    print(f"The median of the largest of so many is {median:.3f}")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2**22)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--largest", type=float, help="number of draws")
    arguments = parser.parse_args()
    if arguments.largest:
        _print_largest(arguments.largest, arguments.size)
        return
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
