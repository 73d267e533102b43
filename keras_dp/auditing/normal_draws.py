"""Tests whether draws are independent, standard normal variables.

Each test raises a false alarm with a probability of at most about 1e-10:

* sums of squares are compared with the chi-square distribution, which is exact
  for normal draws. Of the sums over each round, and of those over each
  coordinate, the least likely is compared at 1e-10 over their number;
* counts in bins of which each expects 20 draws or more, by Pearson's test;
* the largest size, whose distribution is known;
* the products of draws at one distance, for every distance, which are compared
  at 1e-10 over the number of distances with a normal distribution;
* equal sizes in several rounds or several coordinates. As many are compared as
  it takes for an accident to be rarer than 1e-10.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy import special, stats

Draws = npt.NDArray[np.float64]

FALSE_ALARM = 1e-10
# A bin of fewer draws would not be close enough to normal.
LEAST_IN_BIN = 20
# Two draws of float32 are equal with a probability below 2^-20.
BITS_OF_FLOAT = 20.0
# With fewer products their sum is not close enough to normal.
_LEAST_PRODUCTS = 1000


def departure(draws: Draws) -> str | None:
    """Returns how draws `[rounds, coordinates]` depart from normal ones.

    Each round has a seed of its own.
    """
    squares = np.square(draws)
    for each, where in (
        (squares.reshape(1, -1), f"on {draws.size:,} draws"),
        (squares, f"for one seed of {len(squares):,}"),
        (squares.T, f"on one coordinate, in {len(squares):,} rounds"),
    ):
        ratio = _other_spread(each)
        if ratio is not None:
            return (
                f"its standard deviation is {ratio:.4g} times that in the "
                f"ledger, {where}"
            )
    return _other_shape(draws.ravel()) or _dependence(draws)


def repetition(draws: Draws, bits: float) -> str | None:
    """Returns which of `[rounds, coordinates]` have equal draws, if any have.

    Sizes are compared, so that a changed sign does not hide a draw. Two draws
    have the same size with a probability of `2**-bits`.
    """
    sizes = np.abs(draws)
    if _has_equal_rows(sizes, bits):
        return "rounds have the same noise: a seed is used again"
    if _has_equal_rows(sizes.T, bits):
        return "coordinates share one draw"
    return None


def _other_spread(squares: Draws) -> float | None:
    """Returns the spread of the row that is least likely, if it is unlikely."""
    rows, count = squares.shape
    sums = squares.sum(axis=1)
    chances = np.minimum(
        special.chdtr(count, sums), special.chdtrc(count, sums)
    )
    worst = int(np.argmin(chances))
    if chances[worst] >= FALSE_ALARM / (2 * rows):
        return None
    return math.sqrt(sums[worst] / count)


def _other_shape(draws: Draws) -> str | None:
    """Compares counts in bins of equal chance, in the tails, and the end."""
    inner = np.linspace(0, 1, max(3, min(20, draws.size // 50)) + 1)
    least = min(0.25, LEAST_IN_BIN / draws.size)
    tails = [
        least * 10.0**power for power in range(6) if least * 10.0**power < 0.02
    ] or [least]
    edges = np.unique([*inner, *tails, *(1 - each for each in tails)])
    counts, _ = np.histogram(draws, special.ndtri(edges))
    test = stats.chisquare(counts, np.diff(edges) * draws.size)
    if test.pvalue < FALSE_ALARM:
        return (
            f"{draws.size:,} draws are not of the distribution in the ledger "
            f"(chi-square p = {test.pvalue:.2g})"
        )
    farthest = float(np.max(np.abs(draws)))
    beyond = 2 * special.ndtr(-farthest)
    if draws.size * math.log1p(-min(beyond, 1 - 1e-16)) < math.log(FALSE_ALARM):
        return f"the noise is cut off at {farthest:.4g} standard deviations"
    return None


def _dependence(draws: Draws) -> str | None:
    """Looks for draws that depend on each other, at every distance."""
    coordinates = draws.shape[1]
    count = draws.size - draws.size // 2
    if count < _LEAST_PRODUCTS:
        return None
    flat = draws.ravel()
    spectrum = np.fft.rfft(flat, 2 * flat.size)
    products = np.fft.irfft(np.square(np.abs(spectrum)))
    distances = np.arange(1, flat.size - count + 1)
    sums = np.abs(products[distances]) / np.sqrt(flat.size - distances)
    worst = int(np.argmax(sums))
    if sums[worst] < stats.norm.isf(FALSE_ALARM / (2 * distances.size)):
        return None
    distance = worst + 1
    if distance % coordinates:
        return "coordinates share one draw"
    return (
        "rounds have the same noise: a seed is used again after "
        f"{distance // coordinates} rounds"
    )


def _has_equal_rows(sizes: Draws, bits: float) -> bool:
    rows, columns = sizes.shape
    pairs = rows * (rows - 1) / 2
    if not pairs or bits <= 0:
        return False
    needed = math.ceil(math.log2(pairs / FALSE_ALARM) / bits)
    if needed > columns:
        return False
    return bool(len(np.unique(sizes[:, :needed], axis=0)) < rows)
