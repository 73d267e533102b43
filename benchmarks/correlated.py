"""Correlated noise: errors of prefix sums, cost of a round, and accuracy.

    python benchmarks/correlated.py errors
    python benchmarks/correlated.py trees
    python benchmarks/correlated.py cost
    python benchmarks/correlated.py accuracy --tasks mnist --trainings 5

`errors` optimizes strategies here and with JAX Privacy, which it installs into
an environment of its own (`--peer` names an interpreter that has it), and
compares the root mean squared errors of the prefix sums, both computed here.
`trees` has the errors of a tree, for a record that takes part once.
`cost` measures the release of a round, with independent and with correlated
noise. `accuracy` trains at delta = 1e-5 (`benchmarks/correlated_accuracy.py`).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import tensorflow as tf

from benchmarks.correlated_accuracy import (
    METHODS,
    TASKS,
    print_accuracies,
)
from benchmarks.peers import environments
from keras_dp.accountants import strategy_sensitivity
from keras_dp.dp_queries import (
    CorrelatedSumQuery,
    DPQuery,
    GaussianSumQuery,
)
from keras_dp.ledger import (
    BandedToeplitz,
    BinaryTree,
)
from keras_dp.planning import (
    optimize_strategy,
    prefix_sum_error,
)

# Rounds and bands.
GRID = [(100, 10), (500, 50), (1000, 32)]
# What the peer runs: a list of settings on the standard input, JSON out.
PEER = """
import json, sys
import jax
jax.config.update("jax_enable_x64", True)
from jax_privacy.matrix_factorization import toeplitz
for n, bands in json.load(sys.stdin):
    banded = toeplitz.optimize_banded_toeplitz(n, bands)
    print(json.dumps([1.0, *(banded[1:] / banded[0]).tolist()]), flush=True)
"""


def errors(arguments: argparse.Namespace) -> None:
    """Prints the errors of the strategies of both."""
    peer = arguments.peer or environments.python("jax_privacy")
    process = subprocess.run(
        [peer, "-c", PEER],
        input=json.dumps(GRID),
        capture_output=True,
        text=True,
        check=True,
    )
    print("rounds bands here seconds peer ratio")
    for (rounds, bands), line in zip(
        GRID, process.stdout.splitlines(), strict=True
    ):
        began = time.perf_counter()
        found = optimize_strategy(bands, rounds)
        seconds = time.perf_counter() - began
        own, other = (
            prefix_sum_error(each, rounds, min_separation=bands)
            for each in (found, BandedToeplitz(tuple(json.loads(line))))
        )
        row = f"{own:.4f} {seconds:.2f} {other:.4f} {own / other:.4f}"
        print(rounds, bands, row, flush=True)


def trees(arguments: argparse.Namespace) -> None:
    """Prints errors for a record that takes part once, and prices."""
    del arguments
    print("rounds error of tree independent, moved by tree its nodes")
    for rounds in (128, 1024, 8192):
        errors_of = [
            f"{prefix_sum_error(each, rounds, max_participations=1):.3f}"
            for each in (BinaryTree(), BandedToeplitz((1.0,)))
        ]
        moved = strategy_sensitivity(BinaryTree(), rounds, rounds, 1).upper
        nodes = rounds.bit_length() ** 0.5
        print(rounds, *errors_of, f"{moved:.3f} {nodes:.3f}", flush=True)


def cost(arguments: argparse.Namespace) -> None:
    """Prints the seconds of a release with independent and other noise."""
    spec = tf.TensorSpec([arguments.parameters])
    strategies = {
        "2 bands": BandedToeplitz.square_root(2),
        "4 bands": BandedToeplitz.square_root(4),
        "16 bands": BandedToeplitz.square_root(16),
    }
    queries: dict[str, DPQuery] = {
        "independent": GaussianSumQuery(1.0, 1.0),
        "tree of 1,000 rounds": CorrelatedSumQuery(
            BinaryTree(), 1.0, 1.0, 10**6, spec, restart_after=1000
        ),
    }
    for name, strategy in strategies.items():
        queries[name] = CorrelatedSumQuery(strategy, 1.0, 1.0, 10**6, spec)
    runs = {name: _release(query, spec) for name, query in queries.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.repeats):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    base = np.median(times["independent"])
    for name, each in times.items():
        middle = np.median(each)
        print(f"{name}: {1e3 * middle:.1f} ms, {middle / base:.2f} times")


def _release(query: DPQuery, spec: tf.TensorSpec) -> Any:
    """Returns a function that runs one compiled round, its state in variables.

    So it is in a training.
    """
    state = query.initial_global_state()
    variables = tf.nest.map_structure(tf.Variable, state)
    total = tf.Variable(tf.zeros(spec.shape))

    @tf.function(autograph=False)
    def run() -> None:
        read = tf.nest.map_structure(tf.convert_to_tensor, variables)
        result = query.get_noised_result(tf.zeros(spec.shape), read)
        tf.nest.map_structure(
            lambda variable, value: variable.assign(value),
            variables,
            result.global_state,
        )
        total.assign_add(result.value)

    run()
    return run


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    each = commands.add_parser("errors")
    each.add_argument("--peer", help="a Python that has jax_privacy")
    each.set_defaults(run=errors)
    each = commands.add_parser("trees")
    each.set_defaults(run=trees)
    each = commands.add_parser("cost")
    each.add_argument("--parameters", type=int, default=1_000_000)
    each.add_argument("--repeats", type=int, default=30)
    each.set_defaults(run=cost)
    each = commands.add_parser("accuracy")
    each.add_argument("--tasks", nargs="+", default=[*TASKS], choices=TASKS)
    each.add_argument("--epsilons", type=float, nargs="+", default=[1, 4, 8])
    each.add_argument("--trainings", type=int, default=1)
    each.add_argument("--methods", nargs="+", default=[*METHODS])
    each.add_argument("--results", default="out/correlated")
    each.set_defaults(run=print_accuracies)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
