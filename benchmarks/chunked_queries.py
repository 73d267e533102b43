"""What queries cost that must hold the records themselves.

For each query, way to run it and size of a chunk, one process sums a batch of
records three times and reports the shortest time, and how much memory was in
use at most, compilation included, beyond what was before: the records, the
library, and 1,000 preselected vectors. Docstrings have their numbers from here.

    python benchmarks/chunked_queries.py [--size 1000000] [--batch 16]
    python benchmarks/chunked_queries.py --vectors
"""

import argparse
import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

QUERIES = ("discretized", "encoded")
WAYS = ("eager", "tf.function", "xla")
CHUNKS = (2**22, 2**24, 2**26, 2**28)
MEBIBYTE = 2**20


def _megabytes(field: str) -> float:
    """Returns a field of the process's memory status, Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise ValueError(f"`field` must be of /proc. Received: field={field!r}.")


def _query(name: str, size: int, chunk_bytes: int) -> Any:
    from keras_dp.dp_queries.discrete.discretized_sum_query import (
        DiscretizedSumQuery,
    )
    from keras_dp.dp_queries.discrete.encoded_sum_query import EncodedSumQuery
    from keras_dp.dp_queries.discrete.preselected_vectors import (
        PreselectedVectors,
    )
    from keras_dp.ledger import GaussianNoise

    if name == "discretized":
        return DiscretizedSumQuery(1.0, 1.0, 1.0, chunk_bytes)
    vectors = PreselectedVectors(GaussianNoise(1.0), 1_000, size, l2_norm=1.0)
    return EncodedSumQuery(vectors, GaussianNoise(1.0), chunk_bytes)


def measure(
    name: str, way: str, chunk_bytes: int, size: int, batch: int
) -> dict[str, float]:
    """Returns what one query takes, in this process."""
    import tensorflow as tf

    query = _query(name, size, chunk_bytes)
    state = query.initial_global_state(0)
    params = query.derive_sample_params(state)
    empty = query.initial_sample_state(tf.zeros([size]))
    generator = np.random.default_rng(0)
    records = tf.constant(
        generator.standard_normal((batch, size), dtype=np.float32)
    )

    def accumulate(records: Any) -> Any:
        return query.accumulate_records(params, empty, records)

    if way != "eager":
        accumulate = tf.function(accumulate, jit_compile=way == "xla")
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # Gives back what is free.
    Path("/proc/self/clear_refs").write_text("5")  # Forgets the peak.
    before = _megabytes("VmRSS")
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        np.asarray(accumulate(records))
        seconds.append(time.perf_counter() - start)
    return {
        "seconds": min(seconds),
        "above": _megabytes("VmHWM") - before,
        "peak": _megabytes("VmHWM"),
    }


def _in_a_process(arguments: list[Any]) -> dict[str, float]:
    finished = subprocess.run(
        [sys.executable, __file__, "--one", *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(finished.stdout.splitlines()[-1])


def _chunk_table(size: int, batch: int) -> None:
    print(f"{batch} records of {size} float32, peak in MiB, 1,000 vectors")
    print("| query | run | chunk MiB | s | above | in chunks | peak |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in QUERIES:
        for way in WAYS:
            for chunk in CHUNKS:
                held = min(max(4 * size, chunk), 4 * size * batch)
                got = _in_a_process([name, way, chunk, size, batch])
                print(
                    f"| {name} | {way} | {chunk / MEBIBYTE:.0f} "
                    f"| {got['seconds']:.2f} | {got['above']:.0f} "
                    f"| {got['above'] * MEBIBYTE / held:.1f} "
                    f"| {got['peak']:.0f} |",
                    flush=True,
                )


def _vector_table() -> None:
    """How near blocks are to draws, and vectors to one another."""
    from keras_dp.dp_queries.discrete.preselected_vectors import (
        PreselectedVectors,
    )
    from keras_dp.ledger.events import noise_families

    count, draws = 1_000, 20
    generator = np.random.default_rng(0)
    print("| law | size | s | levels | MB | by blocks | between | similarity |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for law in (
        noise_families.GaussianNoise(1.0),
        noise_families.StudentTNoise(1.0, 3.0),
    ):
        for size in (10**3, 10**4, 10**5, 10**6, 10**7):
            start = time.perf_counter()
            recipe = PreselectedVectors(law, count, size, l2_norm=1.0)
            bounds = recipe.bounds()
            seconds = time.perf_counter() - start
            counts = bounds.count_array()
            levels = bounds.level_array().astype(np.float64)
            scaled = levels * np.sqrt(counts)
            scaled /= np.linalg.norm(scaled, axis=1, keepdims=True)
            cosines = scaled @ scaled.T
            pairs = cosines[np.triu_indices(count, 1)]
            distances = np.sqrt(np.maximum(2 - 2 * pairs, 0.0))
            changes = []
            for _ in range(draws if size < 10**7 else 3):
                u = generator.random(size)
                exact = -np.sort(law.quantile(0.5 * u))
                exact /= np.linalg.norm(exact)
                starts = np.r_[0, np.cumsum(counts)[:-1]]
                means = np.add.reduceat(np.square(exact), starts) / counts
                blocks = np.repeat(np.sqrt(means), counts)
                changes.append(np.linalg.norm(exact - blocks))
            print(
                f"| {type(law).__name__} | {size} | {seconds:.2f} "
                f"| {counts.size} | {len(bounds.levels) / 1e6:.1f} "
                f"| {np.mean(changes):.4f} | {distances.mean():.4f} "
                f"| {pairs.min():.6f} |",
                flush=True,
            )


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--vectors", action="store_true")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, way, *numbers = options.one
        print(json.dumps(measure(name, way, *map(int, numbers))))
    elif options.vectors:
        _vector_table()
    else:
        _chunk_table(options.size, options.batch)


if __name__ == "__main__":
    main()
