"""How the cost of a private step grows, beside Keras's step without privacy.

    python benchmarks/scaling.py [--only batch sequence] [--plot FILE.png]
    python benchmarks/scaling.py --large

The first measures W2 at growing batches and W4 at growing lengths of its
sequences; the second one private step of an encoder of BERT-base's size. Every
point is a process of its own, which also gives its peak memory. `--quick`
leaves out the larger points.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from peers import driver
from workloads import bert, find

WORKER = driver.FOLDER / "keras_dp_worker.py"
MODES = ["private", "keras"]
GROWTH = {
    "batch": ("w2:batch={}", [64, 256, 1024, 4096, 16_384]),
    "sequence": ("w4:sequence={}", [64, 128, 256, 512, 1024, 2048]),
}
QUICK_POINTS = 3
MOST_BYTES = 20 * 10**9
PATIENCE_SECONDS = 900.0
# Turns that are timed after one that is not.
TURNS, STEPS = 3, 4
# The smallest points are mostly what a step costs at any size.
FITTED_POINTS = 3
FLOAT32_BYTES = 4
LARGE_BATCH = 4


class Point(NamedTuple):
    """What a step costs at one size."""

    size: int
    seconds: float
    peak_megabytes: float


def measure(workload: str, mode: str, size: int, turns: int = TURNS) -> Point:
    """Returns the cost of a step, the median of the turns."""
    command = [sys.executable, str(WORKER), "--workload", workload]
    worker = driver.Worker(
        [*command, "--mode", mode],
        most_bytes=MOST_BYTES,
        patience_seconds=PATIENCE_SECONDS,
    )
    try:
        worker.run(1)
        done = [worker.run(STEPS) for _ in range(turns)]
    finally:
        worker.close()
    seconds = statistics.median(turn.seconds for turn in done)
    return Point(size, seconds, done[-1].peak_megabytes)


def exponent(points: Sequence[Point]) -> float:
    """Returns `a` of the fit `seconds = b size^a` to the largest points."""
    last = points[-FITTED_POINTS:]
    sizes = np.log([point.size for point in last])
    slope, _ = np.polyfit(sizes, np.log([p.seconds for p in last]), 1)
    return float(slope)


def megabytes_each(points: Sequence[Point]) -> float:
    """Returns the slope of a line through peak memory over size."""
    sizes = [point.size for point in points]
    slope, _ = np.polyfit(sizes, [p.peak_megabytes for p in points], 1)
    return float(slope)


def grow(axis: str, quick: bool) -> dict[str, list[Point]]:
    """Prints one row per size, and the slopes; returns the points."""
    name, sizes = GROWTH[axis]
    measured: dict[str, list[Point]] = {mode: [] for mode in MODES}
    print(f"| {axis} | private ms | Keras ms | ratio | private MB | Keras MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for size in sizes[:QUICK_POINTS] if quick else sizes:
        row = []
        for mode in MODES:
            try:
                point = measure(name.format(size), mode, size)
            except driver.WorkerError as error:
                print(f"{axis} {size}, {mode}: {error}", file=sys.stderr)
                break
            measured[mode].append(point)
            row.append(point)
        if len(row) < len(MODES):
            break
        ours, keras = row
        print(
            f"| {size} | {1e3 * ours.seconds:.1f} | {1e3 * keras.seconds:.1f} "
            f"| {ours.seconds / keras.seconds:.2f} "
            f"| {ours.peak_megabytes:.0f} | {keras.peak_megabytes:.0f} |",
            flush=True,
        )
    print()
    for mode, points in measured.items():
        if len(points) > 1:
            print(
                f"* {mode}: time grows as {axis}^{exponent(points):.2f}, "
                f"memory by {megabytes_each(points):.3f} MB each"
            )
    print(flush=True)
    return measured


def large(batch: int) -> None:
    """Prints the cost of a private step of a large model."""
    size = bert()
    point = measure(f"bert:batch={batch}", "private", batch, turns=1)
    gigabytes = batch * FLOAT32_BYTES * size.parameters / 1e9
    print(
        f"{size.parameters:,} parameters, batch {batch}, sequence "
        f"{size.shape[0]}: {point.seconds:.2f} s per step, peak memory "
        f"{point.peak_megabytes / 1e3:.2f} GB. Gradients of every example "
        f"alone would fill {gigabytes:.2f} GB here, and "
        f"{find('w2').batch * gigabytes / batch:.0f} GB at batch "
        f"{find('w2').batch}."
    )


def plot(path: Path, measured: dict[str, dict[str, list[Point]]]) -> None:
    """Draws time and memory over size, one row of axes for each growth."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        len(measured), 2, figsize=(8, 3.2 * len(measured)), squeeze=False
    )
    for (axis, curves), (time_axes, memory_axes) in zip(
        measured.items(), grid, strict=True
    ):
        for mode, points in curves.items():
            sizes = [point.size for point in points]
            milliseconds = [1e3 * point.seconds for point in points]
            memory = [point.peak_megabytes for point in points]
            time_axes.loglog(sizes, milliseconds, "o-", label=mode)
            memory_axes.loglog(sizes, memory, "o-", label=mode)
        time_axes.set(xlabel=axis, ylabel="ms per step")
        memory_axes.set(xlabel=axis, ylabel="peak MB")
        for axes in (time_axes, memory_axes):
            axes.grid(alpha=0.3)
            axes.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Prints what the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=GROWTH, nargs="+")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--batch", type=int, default=LARGE_BATCH)
    options = parser.parse_args()
    if options.large:
        large(options.batch)
        return
    axes = options.only or list(GROWTH)
    measured = {axis: grow(axis, options.quick) for axis in axes}
    if options.plot:
        plot(options.plot, measured)


if __name__ == "__main__":
    main()
