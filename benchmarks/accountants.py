"""Accountants side by side: epsilon, time and memory, each in a new process.

Every accountant prices every ledger, a list of `(sampling probability, noise
multiplier, rounds)` with Poisson sampling. Time is the median of several calls
after the imports, memory what the process grew by above them. "Over truth" is
epsilon over the least one, less 1: a bound has to be >= 0 there.

    python benchmarks/accountants.py [--only NAME ...] [--timeout 120]
    python benchmarks/accountants.py --peers /tmp/peers
    python benchmarks/accountants.py --corners
    python benchmarks/accountants.py --random 150

The second form also runs the peers that are not development requirements:
it makes a virtual environment in the folder, unless it is there, and installs
`benchmarks/peers/requirements.txt`. The third form prints seconds of the
processor and widths of `Fourier` alone, for ledgers that are hard for it. The
fourth form prints them for ledgers of random numbers, and how many bounds of
each sampling are further apart than 1e-6 of epsilon and 1e-9. For several
rounds of samples of fixed size no such bounds are known: the lower one is that
of an attack, in which each round is one of two pairs, and the upper one that of
a pair which is both of them. So these are not counted as missed.
"""

import argparse
import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Groups: TypeAlias = list[tuple[float, float, int]]
# From groups and delta to epsilon, and to a lower bound on it or NaN.
Price: TypeAlias = Callable[[Groups, float], tuple[float, float]]

REQUIREMENTS = Path(__file__).parent / "peers" / "requirements.txt"
# Calls go on until there are as many, or they took as long.
MOST_CALLS, SECONDS = 5, 2.0
MEBIBYTE = 1024  # `ru_maxrss` counts in KiB on Linux.
MEMORY_LIMIT = 12 * 2**30


def distinct(count: int, probability: float) -> Groups:
    """Returns one round at each of `count` noise multipliers, 0.8 to 1.6."""
    step = 0.8 / max(count - 1, 1)
    return [(probability, 0.8 + step * i, 1) for i in range(count)]


LEDGERS: dict[str, tuple[Groups, float]] = {
    "Abadi": ([(0.01, 4.0, 10_000)], 1e-5),
    "Nasr": ([(256 / 60_000, 0.7, 12_000)], 1e-5),
    "small delta": ([(1e-3, 1.0, 2_000)], 1e-9),
    "rare rounds": ([(1e-4, 0.6, 1_000_000)], 1e-8),
    "rarer rounds": ([(1e-5, 1.0, 1_000_000)], 1e-9),
    "much noise": ([(0.01, 100.0, 100_000)], 1e-6),
    "large epsilon": ([(0.1, 0.3, 1_000)], 1e-5),
    "one round": ([(0.01, 1.0, 1)], 1e-5),
    "not sampled": ([(1.0, 20.0, 1_000)], 1e-5),
    "100 distinct": (distinct(100, 0.01), 1e-5),
    "1000 distinct": (distinct(1_000, 0.01), 1e-5),
    "100000 distinct": (distinct(100_000, 1e-3), 1e-5),
    "1e9 equal": ([(1e-5, 1.0, 10**9)], 1e-6),
}
TRUTH = "Fourier"


def _ours(name: str, *arguments: Any) -> Price:
    from keras_dp import accountants
    from keras_dp.ledger import GaussianSum, PoissonSampling, Round

    accountant = getattr(accountants, name)(*arguments)

    def price(groups: Groups, delta: float) -> tuple[float, float]:
        ledger = [
            (Round(PoissonSampling(q), (GaussianSum("sum", 1.0, z),)), count)
            for q, z, count in groups
        ]
        if not hasattr(accountant, "epsilon_bounds"):
            return accountant.epsilon(ledger, delta=delta), math.nan
        bounds = accountant.epsilon_bounds(
            ledger, delta=delta, neighbours="add_or_remove_one"
        )
        return bounds.upper, bounds.lower

    return price


def _dp_accounting(make: Callable[[], Any]) -> Price:
    import dp_accounting

    def price(groups: Groups, delta: float) -> tuple[float, float]:
        accountant = make()
        for q, z, count in groups:
            event = dp_accounting.GaussianDpEvent(z)
            if q < 1:
                event = dp_accounting.PoissonSampledDpEvent(q, event)
            accountant.compose(event, count)
        return accountant.get_epsilon(delta), math.nan

    return price


def _dp_accounting_rdp() -> Price:
    from dp_accounting.rdp import RdpAccountant

    return _dp_accounting(RdpAccountant)


def _dp_accounting_pld(interval: float) -> Price:
    from dp_accounting.pld import PLDAccountant

    return _dp_accounting(
        lambda: PLDAccountant(value_discretization_interval=interval)
    )


def _prv_accountant(error: float) -> Price:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    def price(groups: Groups, delta: float) -> tuple[float, float]:
        counts = [count for _, _, count in groups]
        laws = [
            PoissonSubsampledGaussianMechanism(
                sampling_probability=q, noise_multiplier=z
            )
            for q, z, _ in groups
        ]
        accountant = PRVAccountant(
            prvs=laws,
            max_self_compositions=counts,
            eps_error=error,
            delta_error=delta / 1000,
        )
        low, _, high = accountant.compute_epsilon(
            delta=delta, num_self_compositions=counts
        )
        return high, low

    return price


def _opacus(name: str) -> Price:
    from opacus import accountants

    def price(groups: Groups, delta: float) -> tuple[float, float]:
        accountant = getattr(accountants, name)()
        accountant.history = [(z, q, count) for q, z, count in groups]
        return accountant.get_epsilon(delta=delta), math.nan

    return price


def _autodp() -> Price:
    from autodp import rdp_acct, rdp_bank

    def price(groups: Groups, delta: float) -> tuple[float, float]:
        accountant = rdp_acct.anaRDPacct()
        for q, z, count in groups:
            accountant.compose_poisson_subsampled_mechanisms(
                lambda order, z=z: rdp_bank.RDP_gaussian({"sigma": z}, order),
                q,
                coeff=count,
            )
        return accountant.get_eps(delta), math.nan

    return price


OURS: dict[str, Callable[[], Price]] = {
    TRUTH: lambda: _ours(TRUTH),
    "RDP": lambda: _ours("RDP"),
    "RDP, classic": lambda: _ours("RDP", "classic"),
    "moments": lambda: _ours("RDP", "moments"),
    "dp_accounting RDP": _dp_accounting_rdp,
    "dp_accounting PLD": lambda: _dp_accounting_pld(1e-4),
    "dp_accounting PLD, 1e-5": lambda: _dp_accounting_pld(1e-5),
}
PEERS: dict[str, Callable[[], Price]] = {
    "prv_accountant, 0.1": lambda: _prv_accountant(0.1),
    "prv_accountant, 0.01": lambda: _prv_accountant(0.01),
    "Opacus RDP": lambda: _opacus("RDPAccountant"),
    "Opacus PRV": lambda: _opacus("PRVAccountant"),
    "Opacus GDP": lambda: _opacus("GaussianAccountant"),
    "autodp RDP": _autodp,
}


# Sampling, noise stddevs of one round each, delta, relation.
CORNERS: dict[str, tuple[tuple[Any, ...], list[float], float, str]] = {
    "noise 2 to 1, 100 rounds, q 1e-4": (
        ("PoissonSampling", 1e-4),
        [2 - i / 99 for i in range(100)],
        1e-8,
        "add_or_remove_one",
    ),
    "noise 1 to 1.02, 80 rounds, q 1e-4": (
        ("PoissonSampling", 1e-4),
        [1 + 0.02 * i / 79 for i in range(80)],
        1e-10,
        "add_or_remove_one",
    ),
    "noise 4 to 2, 1000 rounds, q 1e-3, fixed size": (
        ("FixedSizeWithoutReplacement", 10, 10_000),
        [4 - i / 500 for i in range(1000)],
        1e-6,
        "replace_one",
    ),
    "noise 2 to 1, 1000 rounds, q 1e-3, replaced": (
        ("PoissonSampling", 1e-3),
        [2 - i / 1000 for i in range(1000)],
        1e-6,
        "replace_one",
    ),
    **{
        f"q {q:g}, noise {z:g}, {count} rounds, delta {delta:g}, {relation}": (
            ("PoissonSampling", q),
            [z] * count,
            delta,
            relation,
        )
        for q, z, count, delta, relation in [
            (1e-3, 1.0, 2, 1e-6, "add_or_remove_one"),
            (1e-4, 100.0, 2, 1e-30, "add_or_remove_one"),
            (9.3e-6, 46.9, 462, 7.7e-46, "add_or_remove_one"),
            (1e-4, 0.5, 2, 1e-8, "add_or_remove_one"),
            (1e-3, 1.0, 10, 1e-6, "add_or_remove_one"),
            (1e-4, 0.7, 10, 1e-10, "add_or_remove_one"),
            (1e-3, 1.0, 100, 1e-6, "add_or_remove_one"),
            (1e-4, 1.0, 100, 1e-8, "add_or_remove_one"),
            (1e-5, 0.3, 10_000, 1e-7, "add_or_remove_one"),
            (0.01, 0.1, 10, 0.05, "add_or_remove_one"),
            (0.01, 0.05, 10, 0.09, "add_or_remove_one"),
            (1e-3, 1.0, 10, 1e-6, "replace_one"),
            (1e-4, 1.0, 2, 1e-8, "replace_one"),
        ]
    },
    **{
        f"{kind}{sizes}, noise {z:g}, {count} rounds": (
            (kind, *sizes),
            [z] * count,
            delta,
            "replace_one",
        )
        for kind in ("FixedSizeWithoutReplacement",)
        for sizes, z, count, delta in [
            ((1, 50), 3.0, 40, 1e-6),
            ((20, 100), 6.0, 30, 1e-5),
            ((100, 10_000), 2.0, 1000, 1e-5),
        ]
    },
}


def print_corners() -> None:
    """Prints the time and the width of the bounds of hard ledgers."""
    from keras_dp import ledger
    from keras_dp.accountants import Fourier

    print("| ledger | lower | upper | width | s | method |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (sampling, noises, delta, relation) in CORNERS.items():
        kind = getattr(ledger, sampling[0])(*sampling[1:])
        rounds = [
            (ledger.Round(kind, (ledger.GaussianSum("sum", 1.0, z),)), 1)
            for z in noises
        ]
        start = time.process_time()
        bounds = Fourier().epsilon_bounds(
            rounds, delta=delta, neighbours=relation
        )
        seconds = time.process_time() - start
        width = (bounds.upper - bounds.lower) / bounds.upper
        print(
            f"| {name} | {bounds.lower:.9g} | {bounds.upper:.9g} | "
            f"{width:.1e} | {seconds:.2f} | {bounds.method} |",
            flush=True,
        )


SAMPLINGS = ("poisson", "replaced", "groups", "fixed size", "full or poisson")
# Those whose lower and upper bound are of different pairs.
OF_TWO_PAIRS = {"fixed size"}


def random_ledger(seed: int) -> tuple[str, list[Any], float, str, int]:
    """Returns a sampling, rounds, delta, a relation and how many records."""
    from keras_dp import ledger

    numbers = random.Random(seed)
    # Poisson samples are twice as often.
    sampling = SAMPLINGS[0 if seed % 10 == 9 else seed % 5]
    kinds = numbers.choice([1, 1, 1, 2, 3, 5, 10])
    is_usual = numbers.random() < 0.5
    delta = 10 ** numbers.uniform(*((-12, -2) if is_usual else (-300, -12)))
    rounds, most = [], numbers.choice([0.7, 2, 4, 6])
    for _ in range(kinds):
        is_wide = numbers.random() < 0.3
        noise = 10 ** numbers.uniform(*((-1.5, 2) if is_wide else (-0.4, 1.2)))
        is_wide = numbers.random() < 0.4
        q = 10 ** numbers.uniform(*((-6, 0) if is_wide else (-4, -1)))
        count = max(1, round(10 ** numbers.uniform(0, most)))
        drawn: Any = ledger.PoissonSampling(q)
        if sampling == "fixed size":
            drawn = ledger.FixedSizeWithoutReplacement(
                max(1, round(q * 10**6)), 10**6
            )
        elif sampling == "full or poisson" and numbers.random() < 0.5:
            drawn = ledger.FullDataset()
        event = ledger.GaussianSum("sum", 1.0, noise)
        rounds.append((ledger.Round(drawn, (event,)), count))
    units = numbers.choice([2, 3, 5, 10]) if sampling == "groups" else 1
    is_replaced = sampling in ("replaced", "fixed size")
    relation = "replace_one" if is_replaced else "add_or_remove_one"
    return sampling, rounds, delta, relation, units


def print_random(size: int) -> None:
    """Prints times and widths of random ledgers, and a table of them."""
    from keras_dp.accountants import Fourier

    found: dict[str, list[tuple[bool, float, float]]] = {}
    print("| seed | sampling | delta | lower | upper | width | s | method |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for seed in range(size):
        sampling, rounds, delta, relation, units = random_ledger(seed)
        start = time.process_time()
        bounds = Fourier().epsilon_bounds(
            rounds, delta=delta, neighbours=relation, units=units
        )
        seconds = time.process_time() - start
        apart = bounds.upper - bounds.lower
        width = apart / bounds.upper if apart else 0.0
        is_missed = apart > 1e-9 and width > 1e-6
        found.setdefault(sampling, []).append((is_missed, width, seconds))
        print(
            f"| {seed} | {sampling} | {delta:.1e} | {bounds.lower:.9g} | "
            f"{bounds.upper:.9g} | {width:.1e} | {seconds:.2f} | "
            f"{bounds.method} |",
            flush=True,
        )
    print("\n| sampling | ledgers | missed | worst width | median s | most s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for sampling, some in found.items():
        missed, widths, times = zip(*some, strict=True)
        count = "-" if sampling in OF_TWO_PAIRS else sum(missed)
        print(
            f"| {sampling} | {len(some)} | {count} | {max(widths):.1e} | "
            f"{statistics.median(times):.2f} | {max(times):.2f} |"
        )


class Measured(NamedTuple):
    """One accountant on one ledger; `failure` says why there is no epsilon."""

    epsilon: float = math.nan
    lower: float = math.nan
    seconds: float = math.nan
    mebibytes: float = math.nan
    failure: str = ""


def _grown() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MEBIBYTE


def work(name: str, ledger: str) -> Measured:
    """Measures in this process, which should have done nothing else."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    price = {**OURS, **PEERS}[name]()
    groups, delta = LEDGERS[ledger]
    before, times = _grown(), []
    while len(times) < MOST_CALLS and sum(times) < SECONDS:
        start = time.perf_counter()
        epsilon, lower = price(groups, delta)
        times.append(time.perf_counter() - start)
    return Measured(
        float(epsilon),
        float(lower),
        statistics.median(times),
        _grown() - before,
    )


def measure(python: Path, name: str, ledger: str, timeout: float) -> Measured:
    """Measures in a new process of its own."""
    command = [python, "-W", "ignore", __file__, "--work", name, ledger]
    # One thread each, so that the times compare.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Measured(failure=f"> {timeout:g} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        return Measured(failure=lines[-1].partition(":")[0].rpartition(".")[2])
    return Measured(*json.loads(done.stdout.splitlines()[-1]))


def peer_python(folder: Path) -> Path:
    """Returns the interpreter of the peers, made if it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        install = [python, "-m", "pip", "install", "-q", "-r", REQUIREMENTS]
        subprocess.run(install, check=True)
    return python


def _cell(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)


def _print_row(name: str, found: Measured, truth: float) -> None:
    if found.failure:
        print(f"| {name} | {found.failure} | | | | |", flush=True)
        return
    cells = [
        _cell(found.epsilon, ".6g"),
        _cell(found.lower, ".6g"),
        _cell(found.epsilon / truth - 1, "+.2%"),
        _cell(found.seconds, ".3g"),
        _cell(found.mebibytes, ".0f"),
    ]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Prints a table for each ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--peers", type=Path, help="folder of their environment"
    )
    parser.add_argument("--only", nargs="+", default=[], help="accountants")
    parser.add_argument("--ledgers", nargs="+", default=list(LEDGERS))
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--corners", action="store_true")
    parser.add_argument("--random", type=int, help="how many ledgers")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        print(json.dumps(work(*arguments.work)))
        return
    if arguments.corners:
        print_corners()
        return
    if arguments.random:
        print_random(arguments.random)
        return
    where = dict.fromkeys(OURS, Path(sys.executable))
    if arguments.peers:
        where.update(dict.fromkeys(PEERS, peer_python(arguments.peers)))
    for ledger in arguments.ledgers:
        print(f"{ledger}, delta = {LEDGERS[ledger][1]:g}\n")
        print("| accountant | epsilon | lower | over truth | s | MiB |")
        print("| --- | --- | --- | --- | --- | --- |")
        truth = math.nan
        for name, python in where.items():
            if arguments.only and name not in {TRUTH, *arguments.only}:
                continue
            found = measure(python, name, ledger, arguments.timeout)
            truth = found.epsilon if name == TRUTH else truth
            _print_row(name, found, truth)
        print()


if __name__ == "__main__":
    main()
