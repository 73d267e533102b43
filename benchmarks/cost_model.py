"""Does the cost model pick the faster way to the norms of a kernel?

For kernels of several shapes the per-example gradients are built, and their
norms taken as ghost norms, in turn, in one process; the norms and the sum
under weights are computed both ways. Printed are both times, what the model
would pick, and at the end by how much it loses against the faster way, always
picked in hindsight, and against always building and never building.

`--fit` prints the rates of operations and of bytes that explain the measured
times best, which are the constants of `keras_dp.gradients.records.cost_model`.

    python benchmarks/cost_model.py [--turns 9] [--fit]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf
from scipy import optimize

from keras_dp._devices import outside_xla
from keras_dp.gradients.records import cost_model
from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)


class Shape(NamedTuple):
    """Of the factors of a kernel's gradients, one row."""

    batch: int
    shared: int
    left: int
    right: int


SHAPES = (
    *(Shape(64, t, 256, 256) for t in (2, 4, 8, 16, 32, 64, 128)),
    *(Shape(32, t, 128, 128) for t in (8, 32, 128, 256)),
    *(Shape(16, t, 768, 768) for t in (4, 16, 64, 128)),
    *(Shape(128, t, 64, 16) for t in (16, 64, 196)),
    *(Shape(64, t, 576, 64) for t in (16, 64, 256)),
)


def _answers(shape: Shape, builds: bool) -> Callable[[], Any]:
    generator = np.random.default_rng(0)
    left, right = (
        tf.constant(
            generator.normal(size=(shape.batch, 1, shape.shared, width)),
            tf.float32,
        )
        for width in (shape.left, shape.right)
    )
    weights = tf.constant(generator.uniform(size=shape.batch), tf.float32)
    kernel = (shape.left, shape.right)

    @tf.function(autograph=False)
    def answers() -> Any:
        records = OuterProductRecords(
            left, right, Arrangement(kernel, (0, 1), kernel)
        )
        with (
            mock.patch.object(cost_model, "instantiates", return_value=builds),
            outside_xla(True),
        ):
            return records.squared_norms(), records.weighted_sum(weights)

    return answers


def measure(shape: Shape, turns: int) -> tuple[float, float]:
    """Returns the median seconds of building and of ghost norms."""
    ways = [_answers(shape, builds) for builds in (True, False)]
    for way in ways:
        way()
    times: list[list[float]] = [[], []]
    for _ in range(turns):
        for way, own in zip(ways, times, strict=True):
            start = time.perf_counter()
            way()
            own.append(time.perf_counter() - start)
    built, ghost = map(statistics.median, times)
    return built, ghost


def _modelled(shape: Shape) -> tuple[float, float]:
    sizes = (shape.batch, 1, shape.shared, shape.left, shape.right, 4)
    return (
        cost_model.instantiated_seconds(*sizes),
        cost_model.ghost_seconds(*sizes),
    )


def fit(measured: dict[Shape, tuple[float, float]]) -> tuple[float, float]:
    """Returns operations and bytes per second that explain the times best."""

    def errors(logarithms: Any) -> Any:
        operations, passes = np.exp(logarithms)
        with (
            mock.patch.object(cost_model, "OPERATIONS_PER_SECOND", operations),
            mock.patch.object(cost_model, "BYTES_PER_SECOND", passes),
        ):
            return [
                np.log(modelled / seconds)
                for shape, times in measured.items()
                for modelled, seconds in zip(
                    _modelled(shape), times, strict=True
                )
            ]

    start = np.log(
        [cost_model.OPERATIONS_PER_SECOND, cost_model.BYTES_PER_SECOND]
    )
    found = optimize.least_squares(errors, start, loss="soft_l1")
    operations, passes = np.exp(found.x)
    return float(operations), float(passes)


def main() -> None:
    """Prints one row per shape, and what the picks cost in total."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    print("| batch | terms | kernel | built ms | ghost ms | picked |")
    print("| --- | --- | --- | --- | --- | --- |")
    measured = {}
    for shape in SHAPES:
        built, ghost = measured[shape] = measure(shape, options.turns)
        picked = _modelled(shape)[0] <= _modelled(shape)[1]
        print(
            f"| {shape.batch} | {shape.shared} | {shape.left} x {shape.right} "
            f"| {1e3 * built:.2f} | {1e3 * ghost:.2f} "
            f"| {'built' if picked else 'ghost'} |",
            flush=True,
        )
    losses = {
        "the model": lambda s: _modelled(s)[0] <= _modelled(s)[1],
        "always building": lambda s: True,
        "never building": lambda s: False,
    }
    for name, builds in losses.items():
        ratios = [
            times[0 if builds(shape) else 1] / min(times)
            for shape, times in measured.items()
        ]
        mean = np.exp(np.mean(np.log(ratios)))
        print(
            f"{name}: {mean:.2f} times the faster way on average, "
            f"{max(ratios):.2f} at worst"
        )
    if options.fit:
        operations, passes = fit(measured)
        print(f"{operations:.2g} operations/s, {passes:.2g} bytes/s")


if __name__ == "__main__":
    main()
