"""What noise of each family costs, at equal variance.

A record moves a sum by a vector of L2 norm 1, spread evenly over k coordinates,
each with noise of variance 1. The cost is the Rényi divergence of the noised
sums, `k log I(1 / sqrt(k)) / (order - 1)`, where `I(t)` is the integral of
`(z(x - t) / z(x))^order z(x)`. As k grows it tends to `order / 2` times the
Fisher information, which is least for the Gaussian.

    python benchmarks/noise_families.py [--plot docs/images/noise_families.png]
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from keras_dp.ledger import NoiseDistribution
from keras_dp.ledger.events.noise_families import (
    GaussianNoise,
    LaplaceNoise,
    StudentTNoise,
)

Array = Any

FAMILIES = {
    "Gaussian": GaussianNoise(1.0),
    "Student-t 9": StudentTNoise(1.0, 9.0),
    "Student-t 5": StudentTNoise(1.0, 5.0),
    "Student-t 3": StudentTNoise(1.0, 3.0),
    "Laplace": LaplaceNoise(1.0),
    "Cauchy, scale 1": StudentTNoise(1.0, 1.0),
}
COORDINATES = [1, 10, 1_000, 100_000, 10_000_000]
ORDERS = [2, 32]
PLOTTED = 32
# Below it the terms are summed as a series, for their difference cancels.
SMALL = 0.1


def excess(log_ratio: Array, order: int) -> Array:
    """Returns `r^order - 1 - order (r - 1)`, without cancellation."""
    terms = [
        (float(order) ** n - order) / math.factorial(n) for n in range(2, 12)
    ]
    small = np.clip(log_ratio, -SMALL / order, SMALL / order)
    return small**2 * np.polynomial.polynomial.polyval(small, terms)


def log_moment(noise: NoiseDistribution, t: float, order: int) -> float:
    """Returns `log I(t)`: its excess over 1 is integrated, not itself."""
    # Beyond the kinks at 0 and t the distance is exp(u - exp(-u)).
    u = np.linspace(-4.5, 60.0, 6000)
    beyond = np.exp(u - np.exp(-u))
    falls = beyond * (1 + np.exp(-u)) * (u[1] - u[0])
    x, w = np.polynomial.legendre.leggauss(200)
    between = (x + 1) / 2 * t
    points = np.concatenate([-beyond[::-1], between, t + beyond])
    weights = np.concatenate([falls[::-1], w / 2 * t, falls])
    # Not t + beyond - t, which loses the digits of small distances.
    moved = np.concatenate([-beyond[::-1] - t, between - t, beyond])
    own = noise.log_density(points)
    own = np.maximum(own, -1e290)  # -inf has no ratio.
    ratio = np.maximum(noise.log_density(moved), -1e290) - own
    direct = (
        np.exp(own + order * ratio)
        - order * np.exp(own + ratio)
        + (order - 1) * np.exp(own)
    )
    series = np.exp(own) * excess(ratio, order)
    terms = np.where(np.abs(ratio) * order < SMALL, series, direct)
    return math.log1p(float(terms @ weights))


def cost(noise: NoiseDistribution, coordinates: float, order: int) -> float:
    """Returns the Rényi divergence for a unit vector of equal coordinates."""
    each = log_moment(noise, 1 / math.sqrt(coordinates), order)
    return coordinates * each / (order - 1)


def standardized(noise: NoiseDistribution) -> NoiseDistribution:
    """Returns the law with variance 1, or as it is if it has none."""
    if math.isinf(noise.variance):
        return noise
    return noise.scaled(1 / math.sqrt(noise.variance))


def break_even(noise: NoiseDistribution, order: int) -> float:
    """Returns the number of coordinates where it costs what the normal does."""
    low, high = 0.0, 20.0  # In logs.
    for _ in range(60):
        middle = (low + high) / 2
        if cost(noise, math.exp(middle), order) < order / 2:
            low = middle
        else:
            high = middle
    return math.exp(low)


def _print_table() -> None:
    head = ["family, var 1", "FI var", "sigma"]
    head += [f"D_{o} k={k:.0e}" for o in ORDERS for k in COORDINATES]
    head += [f"D_{o} limit" for o in ORDERS] + [f"k even D_{PLOTTED}"]
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for name, family in FAMILIES.items():
        noise = standardized(family)
        information = noise.fisher_information
        row = [
            information * noise.variance,
            1 / math.sqrt(information),
        ]
        row += [cost(noise, k, o) for o in ORDERS for k in COORDINATES]
        row += [o / 2 * information for o in ORDERS]
        if information * noise.variance > 1 + 1e-9 and noise.variance < 9:
            row.append(break_even(noise, PLOTTED))
        cells = " | ".join(f"{value:.6g}" for value in row)
        print(f"| {name} | {cells} |")


def _plot(path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.0), dpi=90)
    coordinates = np.logspace(0, 7, 57)
    for name, family in FAMILIES.items():
        if math.isinf(family.variance):
            continue
        noise = standardized(family)
        ratios = [cost(noise, k, PLOTTED) / (PLOTTED / 2) for k in coordinates]
        axes.loglog(coordinates, ratios, label=name)
    axes.set_xlabel("coordinates that carry the norm of a record")
    axes.set_ylabel(f"Rényi divergence of order {PLOTTED},\nGaussian = 1")
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title("Cost of noise of variance 1", fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"\n{path}: {path.stat().st_size} bytes")


def main() -> None:
    """Prints the table, and draws the plot if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    _print_table()
    if arguments.plot:
        _plot(arguments.plot)


if __name__ == "__main__":
    main()
