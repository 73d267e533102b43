"""Epsilon of random allocation, beside Poisson samples of the same mean size.

A pass has t batches, of which each record picks k, and a Poisson sample the
probability k / t. All have one Gaussian sum a round, and the relation "add or
remove one".

    python benchmarks/samplers.py [--delta 1e-6]
"""

import argparse
import itertools
from collections.abc import Iterator

from keras_dp.accountants import Fourier
from keras_dp.ledger import (
    GaussianSum,
    PoissonSampling,
    RandomAllocation,
    Round,
)

BATCHES, EPOCHS = (10, 100, 1000), (1, 10, 100)
# Batches of a pass that a record picks.
PICKS = (1, 2, 4)
NOISE_MULTIPLIERS = (0.6, 1.0, 2.0, 5.0)


def epsilons(
    batches: int,
    epochs: int,
    noise_multiplier: float,
    delta: float,
    picks: int = 1,
) -> tuple[float, float]:
    """Returns the epsilons of random allocation and of Poisson samples."""
    release = (GaussianSum("gradients", 1.0, noise_multiplier),)
    allocated = [
        (
            Round(RandomAllocation(f"epoch {each}", batches, picks), release),
            batches,
        )
        for each in range(epochs)
    ]
    sampled = Round(PoissonSampling(picks / batches), release)
    poisson = [(sampled, batches * epochs)]
    accountant = Fourier()
    return (
        accountant.epsilon(allocated, delta=delta),
        accountant.epsilon(poisson, delta=delta),
    )


def lines(delta: float) -> Iterator[str]:
    """Yields a table in Markdown, a row for each number of rounds."""
    head = " | ".join(f"z = {each:g}" for each in NOISE_MULTIPLIERS)
    yield f"| Batches of a pass | Of a record | Passes | {head} |"
    yield "| --- " * (3 + len(NOISE_MULTIPLIERS)) + "|"
    for batches, picks, epochs in itertools.product(BATCHES, PICKS, EPOCHS):
        cells = []
        for noise_multiplier in NOISE_MULTIPLIERS:
            ours, poisson = epsilons(
                batches, epochs, noise_multiplier, delta, picks
            )
            cells.append(f"{ours:.4g} ({ours / poisson:.2f})")
        yield f"| {batches:,} | {picks} | {epochs} | {' | '.join(cells)} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delta", type=float, default=1e-6)
    print(
        "Epsilon of random allocation, and its ratio to that of Poisson "
        "samples:\n"
    )
    for line in lines(parser.parse_args().delta):
        print(line, flush=True)


if __name__ == "__main__":
    main()
