"""Balls in bins: JAX Privacy's random draws between our certified bounds.

    python benchmarks/correlated_peer.py --samples 20000

JAX Privacy draws privacy losses of the dominating pair, one by one, in an
environment of its own (`--peer` names an interpreter that has it). For 20
settings the script prints our lower bound on epsilon, that of its draws, and
our upper bound. It fails if delta of the draws is more than 4 standard errors
off at one of the bounds.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.correlated import PRICED
from benchmarks.peers import environments
from keras_dp.accountants import Fourier
from keras_dp.ledger import CorrelatedSum, CyclicPoissonSampling, Round

DELTA, ERRORS = 0.01, 4
# Bins, rounds in which a record takes part, and how far it moves the noise.
SETTINGS = [(8, 1, 1.0), (8, 4, 1.5), (16, 2, 1.0), (32, 1, 2.0)]
PEER = """
import json, sys
import numpy as np
from jax_privacy import batch_selection
from jax_privacy.experimental.monte_carlo import sample_generation
settings, samples = json.load(sys.stdin)
for rounds, bins, stddev, column in settings:
    strategy = batch_selection.BallsInBinsSampling(rounds, bins)
    generator = np.random.default_rng(0)
    print(json.dumps([
        [float(sample_generation.get_privacy_loss_sample(
            strategy, stddev, np.array(column), generator, is_there)[0])
         for _ in range(samples)]
        for is_there in (True, False)]), flush=True)
"""


def delta_of(losses: np.ndarray, epsilon: float) -> tuple[float, float]:
    """Returns delta of the draws of the worse direction, and its error."""
    parts = -np.expm1(np.minimum(epsilon - losses, 0.0))
    means, errors = parts.mean(axis=1), parts.std(axis=1)
    worse = int(np.argmax(means))
    return float(means[worse]), float(errors[worse]) / losses.shape[1] ** 0.5


def epsilon_of(losses: np.ndarray) -> float:
    """Returns the epsilon of the draws."""
    low, high = 0.0, 50.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        too_small = delta_of(losses, middle)[0] > DELTA
        low, high = (middle, high) if too_small else (low, middle)
    return high


def main() -> None:
    """Reads the command line, and prints a row for each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="a Python that has jax_privacy")
    parser.add_argument("--samples", type=int, default=20_000)
    arguments = parser.parse_args()
    rows, asked = [], []
    for bins, taken, moved in SETTINGS:
        for name, strategy in PRICED.items():
            rounds = bins * taken
            first = strategy.matrix(rounds)[:, ::bins].sum(axis=1)
            stddev = float(np.linalg.norm(first)) / moved
            event = CorrelatedSum("sum", 1.0, stddev, strategy, rounds, "one")
            ledger = [
                (
                    Round(
                        CyclicPoissonSampling(f"draw-{k}", bins, 1), (event,)
                    ),
                    bins,
                )
                for k in range(taken)
            ]
            rows.append((f"{name}, {bins}, {taken}, {moved:g}", ledger))
            column = strategy.matrix(rounds)[:, 0].tolist()
            asked.append((rounds, bins, stddev, column))
    process = subprocess.run(
        [arguments.peer or environments.python("jax_privacy"), "-c", PEER],
        input=json.dumps([asked, arguments.samples]),
        capture_output=True,
        text=True,
        check=True,
    )
    print("strategy, bins, participations, moved: lower, JAX Privacy, upper")
    outside = 0
    for (name, ledger), line in zip(
        rows, process.stdout.splitlines(), strict=True
    ):
        losses = np.array(json.loads(line))
        low, high = Fourier().epsilon_bounds(ledger, delta=DELTA)
        below, error_below = delta_of(losses, low)
        above, error_above = delta_of(losses, high)
        lies = (
            below + ERRORS * error_below >= DELTA
            and above - ERRORS * error_above <= DELTA
        )
        outside += not lies
        print(
            f"{name}: {low:.3f} {epsilon_of(losses):.3f} {high:.3f}"
            f"{'' if lies else ' OUTSIDE'}",
            flush=True,
        )
    if outside:
        sys.exit(f"{outside} of {len(rows)} settings are outside the bounds.")


if __name__ == "__main__":
    main()
