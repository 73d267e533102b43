"""Attacks on the low bits of noised answers, here and on peers.

    python benchmarks/low_bits.py               # needs the repository's tests

Each library noises a sum of zeros, and the sum with one record of norm 1, with
noise of standard deviation 1, in the peer's own terms and environment
(`peers/environments.py`). The attacks of `tests/low_bit_attacks.py` then look
at the answers. In real numbers no attacker is right more often than 69.1 %, the
normal distribution function at 1/2. The last column is how far one record of
norm 1 moves a float sum of 4,096 records beyond 1.

The times of draws are compared with the sizes of the noise: a rank correlation
that is far from 0 tells of the noise (Haney et al. 2022).
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from peers import environments
from scipy import stats

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from tests import low_bit_attacks as attacks  # noqa: E402

PEERS = {
    "Opacus": ("opacus", []),
    "Opacus, `secure_mode`": ("opacus", ["secure"]),
    "JAX Privacy": ("jax_privacy", []),
    "TF Privacy": ("tf_privacy", []),
}
BATCH = 4096


class Row(NamedTuple):
    """What the attacks find in one library.

    Attributes:
        precision: How often the attack by precision is right.
        reachable: The same of the attack that knows all values of the noise;
            `None` if there are too many.
        excess: How far one record moves the float sum beyond its norm.
    """

    precision: float
    reachable: float | None
    excess: float


def of_peer(name: str, extra: Sequence[str], trials: int, pip: Any) -> Row:
    """Returns what the attacks find in a peer."""
    python = environments.python(name, options=pip)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "records.npy"), attacks.rounding_records(BATCH))
        file = str(Path(folder, "answers.npz"))
        numbers = [str(trials), str(attacks.COORDINATES), str(attacks.STEP)]
        script = str(FOLDER / "peers" / f"{name}_low_bits.py")
        subprocess.run([python, script, file, *numbers, *extra], check=True)
        with np.load(file) as found:
            answers = found["without"], found["with_one"]
            first, second = found["sums"].astype(np.float64)
            values = found.get("values")
    reachable = None
    if values is not None:
        attack = attacks.unreachable(values)
        reachable = attacks.success_rate(attack, *answers)
    return Row(
        attacks.success_rate(attacks.refuted, *answers),
        reachable,
        float(np.abs(first - second).max() - 1),
    )


def of_ours(trials: int) -> Row:
    """Returns what the attacks find here."""
    import tensorflow as tf

    from keras_dp.dp_queries import GaussianSumQuery
    from keras_dp.dp_queries.summing_query import on_grid

    def answers(step: float) -> Any:
        # One draw for all trials: each coordinate has noise of its own.
        query = GaussianSumQuery(1.0, 1.0)
        state = query.initial_global_state()
        shape = [trials, attacks.COORDINATES]
        sums = on_grid(
            query.initial_sample_state(tf.zeros(shape)),
            tf.fill(shape, tf.cast(step, tf.float32)),
            query.derive_sample_params(state).spacing,
        )
        return query.get_noised_result(sums, state).value.numpy()

    def total(records: Any) -> Any:
        query = GaussianSumQuery(1.01, 0.0)
        state = query.initial_global_state()
        sums = query.accumulate_records(
            query.derive_sample_params(state),
            query.initial_sample_state(tf.zeros(records.shape[1])),
            tf.constant(records),
        )
        return sums.numpy()

    pair = answers(0.0), answers(attacks.STEP)
    rate = attacks.success_rate(attacks.refuted, *pair)
    return Row(rate, None, attacks.excess(total, BATCH))


def correlation(draw: Callable[[], float], times: int) -> float:
    """Returns the rank correlation of the size of noise and its time."""
    sizes, seconds = [], []
    for _ in range(times):
        start = time.perf_counter()
        noise = draw()
        seconds.append(time.perf_counter() - start)
        sizes.append(abs(noise))
    return float(stats.spearmanr(sizes, seconds).statistic)


def rejected_geometric(scale: int = 30) -> int:
    """Draws a discrete Laplace variable bit by bit, as a control.

    Source: Canonne, Kamath and Steinke (2020), arXiv:2004.00010, Algorithm 2.
    """
    numbers = np.random.default_rng()

    def happens(chance: Fraction) -> bool:
        bound = chance.denominator
        return bool(numbers.integers(bound) < chance.numerator)

    def of_exp(gamma: Fraction) -> bool:
        k = 1
        while happens(gamma / k):
            k += 1
        return k % 2 == 1

    while True:
        low = int(numbers.integers(scale))
        if not of_exp(Fraction(low, scale)):
            continue
        high = 0
        while of_exp(Fraction(1)):
            high += 1
        size = low + scale * high
        negative = bool(numbers.integers(2))
        if size or not negative:
            return -size if negative else size


def timing() -> dict[str, float]:
    """Returns rank correlations of sizes and times, with a control."""
    import tensorflow as tf

    from keras_dp.dp_queries import GaussianSumQuery

    def drawer(query: Any) -> Callable[[], float]:
        state = query.initial_global_state()
        sums = query.initial_sample_state(tf.zeros([1]))

        @tf.function(autograph=False)
        def released(state: Any) -> Any:
            return query.get_noised_result(sums, state)

        def draw() -> float:
            nonlocal state
            result = released(state)
            state = result.global_state
            return float(result.value[0])

        draw()
        return draw

    return {
        "a discrete Laplace variable drawn by rejection": correlation(
            rejected_geometric, 2_000
        ),
        "`GaussianSumQuery`": correlation(
            drawer(GaussianSumQuery(1.0, 1.0)), 2_000
        ),
    }


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", nargs="*", default=list(PEERS))
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--pip-option", action="append", default=[])
    chosen = parser.parse_args()
    rows = {"keras_dp": of_ours(chosen.trials)}
    for peer in chosen.peers:
        name, extra = PEERS[peer]
        rows[peer] = of_peer(name, extra, chosen.trials, chosen.pip_option)
    print("| | By precision | By reachable values | A float sum moves |")
    print("| --- | --- | --- | --- |")
    for library, row in rows.items():
        known = "-" if row.reachable is None else f"{row.reachable:.1%}"
        print(
            f"| {library} | {row.precision:.1%} | {known} "
            f"| 1 + {row.excess:.1e} |"
        )
    print("\n| Draws of | Rank correlation of size and time |")
    print("| --- | --- |")
    for name, found in timing().items():
        print(f"| {name} | {found:+.2f} |")


if __name__ == "__main__":
    main()
