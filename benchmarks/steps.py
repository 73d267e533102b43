"""How long a private step takes, and beside others.

    python benchmarks/steps.py [--workload w1 ...] [--rounds 7]

compares with Keras: both as a user runs them, by `fit` on the same model, data
and batch size, in turn, several times, in one process. The private side draws
Poisson samples, clips, adds noise, updates and records every round in a ledger
file; the other side is Keras's `fit` on shuffled batches. A step of either is
one update of the weights. The median over the turns of each ratio is what
counts: absolute times vary with the load of the machine. Where a machine is
slowed down for whole turns, the fastest turns of both sides tell more. With
`--same-rows` the private side takes batches of one size instead of Poisson
samples, as many rows as Keras.

    python benchmarks/steps.py --at-once 50 [--workload t1 ...] [--rounds 7]

compares so many rounds at once (`steps_per_execution`) with one, on both sides,
by the clock and by the time of all processors. With `--xla` XLA compiles the
private side.

    python benchmarks/steps.py --proven [--workload w1 ...] [--rounds 7]

compares private steps with precision="proven" with those without, on batches of
one size, by the time of all processors.

    python benchmarks/steps.py --peers [--workload w1 ...] [--rounds 5]

compares with Opacus, TensorFlow Privacy and JAX Privacy as well; each has an
environment of its own, made under `--environments` the first time, and every
way to train a process. `benchmarks/peers/README.md` says what is compared.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers import comparison, driver, environments, table
from peers.keras_dp_worker import keras_step, private_step
from workloads import WORKLOADS, Workload

METRICS = ["accuracy"]
PEERS = ["opacus", "tf_privacy", "jax_privacy"]


def measure(
    workload: Workload, turns: int, *, draws: bool, proven: bool
) -> tuple[Sequence[float], Sequence[float]]:
    """Returns the seconds per step of both sides, one of each per turn."""
    if proven:
        ours, other = (
            private_step(workload, METRICS, draws=False, precision=precision)
            for precision in ("proven", "assumed")
        )
    else:
        ours = private_step(workload, METRICS, draws=draws)
        other = keras_step(workload, METRICS)
    # Two private steps do the same but for rounding: their work is compared.
    clock = time.process_time if proven else time.perf_counter

    def timed(step: Any) -> float:
        start = clock()
        step.run(workload.steps)
        return (clock() - start) / workload.steps

    timed(ours), timed(other)
    times = [(timed(ours), timed(other)) for _ in range(turns)]
    our_times, other_times = zip(*times, strict=True)
    return our_times, other_times


def beside_one(
    names: Sequence[str], turns: int, *, draws: bool, proven: bool
) -> None:
    """Prints one row per workload, beside Keras or the assumed precision."""
    import keras

    print(
        "| model | batch "
        f"| {'proven ms | assumed' if proven else 'private ms | Keras'} ms "
        "| ratio, median (range) | ratio of the fastest turns |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for name in names:
        ours, others = measure(
            WORKLOADS[name], turns, draws=draws, proven=proven
        )
        ratios = [a / b for a, b in zip(ours, others, strict=True)]
        print(
            f"| {name} | {WORKLOADS[name].batch} "
            f"| {1e3 * statistics.median(ours):.1f} "
            f"| {1e3 * statistics.median(others):.1f} "
            f"| {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f}) "
            f"| {min(ours) / min(others):.2f} |",
            flush=True,
        )
        keras.backend.clear_session()


def at_once_and_alone(
    names: Sequence[str], turns: int, at_once: int, *, by_xla: bool
) -> None:
    """Prints one row per workload: many rounds at once, and one, of both."""
    import keras

    print(
        "| model | private ms, one | at once | Keras ms, one | at once | "
        "at once / Keras's one | of all processors, ms | / Keras's one |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in names:
        workload = WORKLOADS[name]
        sides = [
            make(workload, METRICS, at_once=count)
            for make in (
                functools.partial(private_step, by_xla=by_xla),
                keras_step,
            )
            for count in (1, at_once)
        ]
        turned = [[_clocked(each, workload.steps) for each in sides]]
        turned += [
            [_clocked(each, workload.steps) for each in sides]
            for _ in range(turns)
        ]
        wall, processors = (
            [
                [1e3 * turn[side][clock] for turn in turned[1:]]
                for side in range(len(sides))
            ]
            for clock in (0, 1)
        )
        shown = [f"{statistics.median(each):.2f}" for each in wall]
        print(
            f"| {name} | {' | '.join(shown)} "
            f"| {_ratio(wall[1], wall[2]):.2f} "
            f"| {statistics.median(processors[1]):.2f} "
            f"| {_ratio(processors[1], processors[2]):.2f} |",
            flush=True,
        )
        keras.backend.clear_session()


def _clocked(step: Any, steps: int) -> tuple[float, float]:
    """Returns the seconds of a step by the clock, and of all processors."""
    start = time.perf_counter(), time.process_time()
    step.run(steps)
    return (
        (time.perf_counter() - start[0]) / steps,
        (time.process_time() - start[1]) / steps,
    )


def _ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, others, strict=True))


def beside_peers(names: Sequence[str], options: argparse.Namespace) -> None:
    """Prints one row per workload and way to train, and writes the JSON."""
    load = os.getloadavg()[0]
    driver.use_cores(options.cores)
    interpreters = {"keras_dp": sys.executable}
    missing = {}
    for peer in options.only or PEERS:
        try:
            interpreters[peer] = environments.python(
                peer, options.environments, options.pip_option
            )
        except subprocess.CalledProcessError as error:
            missing[peer] = str(error)
    ways = [
        way
        for way in comparison.WAYS
        if way.framework in interpreters and (options.slow or not way.slow)
    ]
    notes, written = [], []
    print(table.HEADER)
    for name in names:
        print(name, file=sys.stderr)
        start = comparison.starter(
            name,
            interpreters,
            most_bytes=int(options.memory_limit_gb * 1e9),
        )
        results = comparison.compare(
            start, WORKLOADS[name], options.rounds, ways
        )
        print("\n".join(table.rows(name, results)), flush=True)
        notes += table.notes(name, results)
        written.append(table.as_json(name, results))
        if options.json:
            options.json.write_text(json.dumps(written, indent=1) + "\n")
    print(f"\n**Bold**: the best peer. Load before the start: {load:.2f}.")
    print("Other modes, each alone:\n")
    notes += [f"* {peer} is missing: {why}" for peer, why in missing.items()]
    print("\n".join(notes))


def main() -> None:
    """Prints the table that the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", choices=WORKLOADS, nargs="+")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--same-rows", action="store_true")
    parser.add_argument("--proven", action="store_true")
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--xla", action="store_true", help="see --at-once")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--only", choices=PEERS, nargs="+", help="of the peers")
    parser.add_argument("--slow", action="store_true", help="the slowest too")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory-limit-gb", type=float, default=16.0)
    parser.add_argument("--environments", type=Path, default=environments.CACHE)
    parser.add_argument("--pip-option", action="append", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.peers:
        names = options.workload or list(WORKLOADS)
        options.rounds = options.rounds or 5
        beside_peers(names, options)
    elif options.at_once:
        names = options.workload or list(WORKLOADS)
        at_once_and_alone(
            names,
            options.rounds or 7,
            options.at_once,
            by_xla=options.xla,
        )
    else:
        names = options.workload or list(WORKLOADS)
        beside_one(
            names,
            options.rounds or 7,
            draws=not options.same_rows,
            proven=options.proven,
        )


if __name__ == "__main__":
    main()
