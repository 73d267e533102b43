"""Normal noise beside its peers: how fast it is drawn, and how normal it is.

    python benchmarks/noise_generators.py [--size 3276800] [--turns 15]

The ways are timed in turn, in one process, so that the load of the machine
meets all alike; a ratio is the median over the turns of the time of
TensorFlow's Philox normals, outside XLA, over that of the way. The last column
counts the time of all cores that the process was given, which hardly depends
on what else runs. Seeds change every time.

    python benchmarks/noise_generators.py --releases

times whole releases instead, of a million coordinates and of 12.8 million: with
TensorFlow's own normals in float32, as they are, and if nothing in doubt were
computed again. Ratios are to the first.

    python benchmarks/noise_generators.py --draws 1e9

draws so many with each generator of the library and tests them: chi squared
over 4,096 cells of equal probability, and how many lie beyond 4 to 9 standard
deviations, by exact tests. The same tests of normal variables made of 24-bit
uniform ones must fail, or would be of no use.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from scipy import special, stats

from keras_dp._devices import outside_xla
from keras_dp.noise import grid, seeds, streams

CELLS = 4096
WARM_UP = 5
DISTANCES = (4, 5, 5.5, 6, 7, 8, 9)
PIECE = 2**23
# Of a correct generator, a line.
FALSE_ALARM = 1e-6

Draw = Callable[[int], np.ndarray]


def _ways(size: int) -> dict[str, Draw]:
    like = tf.zeros([size])
    ways: dict[str, Draw] = {}

    def peer(algorithm: str, compiled: bool) -> Draw:
        draw = tf.function(
            lambda seed: tf.random.stateless_normal(
                [size], seed, alg=algorithm
            ),
            jit_compile=compiled,
        )
        return lambda turn: draw(tf.constant([turn, 1])).numpy()

    ways["TensorFlow Philox"] = peer("philox", False)
    ways["TensorFlow Philox, XLA"] = peer("philox", True)
    ways["TensorFlow ThreeFry, XLA"] = peer("threefry", True)

    def numpy_normal(turn: int) -> np.ndarray:
        return np.random.default_rng(turn).standard_normal(size, np.float32)

    ways["NumPy PCG64"] = numpy_normal
    stddev = tf.constant(2.0**24, tf.float64)
    for compiled in (False, True):
        draw = tf.function(
            lambda seed: grid.draws([like], stddev, seed),
            jit_compile=compiled,
        )
        ways[f"keras_dp{', XLA' * compiled}"] = lambda turn, draw=draw: draw(
            seeds.fresh(turn)
        )[0][0].numpy()
    return ways


def _releases(size: int) -> dict[str, Draw]:
    sums = [tf.random.stateless_normal([size], [1, 2])]
    stddev = tf.constant(1.0, tf.float64)

    def on_grid(seed: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        return grid.noised(sums, stddev, seed)

    def unrefined(seed: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        # Replaced while this is traced.
        kept, streams._in_doubt = streams._in_doubt, lambda doubts: doubts > 1
        try:
            return on_grid(seed)
        finally:
            streams._in_doubt = kept

    def in_float32(seed: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        noise = tf.random.stateless_normal([size], seed[:2], alg="philox")
        return [sums[0] + tf.cast(stddev, tf.float32) * noise], seed

    ways: dict[str, Draw] = {}
    for release in (in_float32, on_grid, unrefined):
        with outside_xla(True):  # As the steps of a training are traced.
            traced = tf.function(release).get_concrete_function(seeds.fresh(0))
        ways[f"{release.__name__}, {size:,}"] = lambda turn, traced=traced: (
            traced(seeds.fresh(turn))[0][0].numpy()
        )
    return ways


def _print_speed(ways: dict[str, Draw], size: int, turns: int) -> None:
    first = next(iter(ways))
    for way in ways.values():
        for turn in range(WARM_UP):  # Traces and compiles, what is refined too.
            way(turns + turn)
    times: list[dict[str, float]] = []
    of_cores = dict.fromkeys(ways, 0.0)
    for turn in range(turns):
        times.append({})
        for name, way in ways.items():
            start, used = time.perf_counter(), time.process_time()
            way(turn)
            times[-1][name] = time.perf_counter() - start
            of_cores[name] += time.process_time() - used
    print(
        "| normals | M/s, best | M/s, median | ratio | M/s of a core "
        "| ns of a core |"
    )
    print("|" + " --- |" * 6)
    for name in ways:
        own = [each[name] for each in times]
        ratio = statistics.median(each[first] / each[name] for each in times)
        print(
            f"| {name} | {size / min(own) / 1e6:.0f} | "
            f"{size / statistics.median(own) / 1e6:.0f} | {ratio:.2f} | "
            f"{size * turns / of_cores[name] / 1e6:.0f} | "
            f"{1e9 * of_cores[name] / size / turns:.1f} |"
        )


def _coarse(turn: int) -> np.ndarray:
    words = np.random.default_rng(turn).integers(0, 2**24, PIECE)
    return special.ndtri((words + 0.5) * 2.0**-24).astype(np.float32)


@functools.partial(tf.function, jit_compile=True)
def _counts(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    uniform = 0.5 * tf.math.erfc(tf.cast(values, tf.float64) * -(0.5**0.5))
    cells = tf.cast(uniform * CELLS, tf.int32)
    beyond = [
        tf.math.count_nonzero(tf.abs(values) > distance)
        for distance in DISTANCES
    ]
    return cells, tf.stack(beyond)


def _print_statistics(draws: float) -> None:
    pieces = max(1, round(draws / PIECE))
    total = pieces * PIECE
    unit = tf.constant(2.0**24, tf.float64)

    @tf.function
    def own(seed: tf.Tensor) -> tf.Tensor:
        drawn, _ = streams.rounded_normals(PIECE, seed, unit)
        return tf.cast(tf.cast(drawn, tf.float64) / unit, tf.float32)

    for name, draw in (
        ("keras_dp", lambda turn: own(seeds.fresh(turn))),
        ("control: 24-bit uniforms", _coarse),
    ):
        cells, beyond = np.zeros(CELLS), np.zeros(len(DISTANCES), int)
        for turn in range(pieces):
            places, outside = _counts(draw(turn))
            cells += np.bincount(np.minimum(places, CELLS - 1), minlength=CELLS)
            beyond += outside.numpy()
        print(f"{name}, {total:,} draws")
        print(f"  chi squared: p = {stats.chisquare(cells).pvalue:.3g}")
        for distance, count in zip(DISTANCES, beyond, strict=True):
            p = 2 * special.ndtr(-distance)
            value = stats.binomtest(int(count), total, p).pvalue
            verdict = "FAILS" if value < FALSE_ALARM else "passes"
            print(
                f"  beyond {distance}: {count:,} of {total * p:,.2f} "
                f"expected, p = {value:.3g}, {verdict}"
            )


def main() -> None:
    """Prints the table, or the tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=3_276_800)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--draws", type=float, help="number of draws to test")
    parser.add_argument("--releases", action="store_true")
    arguments = parser.parse_args()
    if arguments.draws:
        _print_statistics(arguments.draws)
    elif arguments.releases:
        for size in (1_000_000, 12_800_000):
            _print_speed(_releases(size), size, arguments.turns)
    else:
        size = arguments.size
        _print_speed(_ways(size), size, arguments.turns)


if __name__ == "__main__":
    main()
