"""Balls in bins: a chain of bins above them.

The price grows with each product `G_ij` of two bins (docs/accounting.md,
Theorem 4). Two bins of a chain, a distance d apart, have the product `shared +
linked * decay^d`, and `own` more where d is 0. A chain covers all bins on the
ring but for some next to each other, whatever the turn (see `bins`). Its
likelihood ratio is `e^(C - shared/2)` times the mean of `R_j e^(Y_j -
linked/2)`, where C is normal, the R_j are independent log-normal ratios, and
`Y_(j+1) = decay Y_j + Z_j` is normal.

Y is rounded at random to points a step apart, by quadratic splines, and each
term to multiples of a number, by its two neighbours. So the law of the sum and
of the last Y is a matrix. One more bin takes a convolution of each row, and a
product of matrices. Theorem 5 of docs/accounting.md bounds what this adds.

The means of `(L - k)+` follow from those of `(k - L)+`, to which no sum above k
contributes.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from scipy import fft

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.compose.grid import likelihood
from keras_dp.accountants.compose.grid.likelihood import Spread

_ULP = 2.0**-52
# Points of the sum; the largest L of the first grid; how much larger it becomes
# from grid to grid.
_POINTS, _FIRST, _LARGER, _MOST_GRIDS = 1024, 3.0, 4.0, 8
# Steps of Y in a stddev of Z. Steps below the second number change no mean.
_STEPS, _NO_STEP = 4, 1e-4
# Chances that are left out, all together; each of the smallest ones.
_LEFT_OUT, _NOTHING = 1e-14, 1e-40
# More bins take more than half a minute.
_MOST_BINS, _MOST_PRODUCT = 400, 25.0
# Chains that are tried: numbers for `shared`, and for `decay`.
_SHARED = 24
_DECAYS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.96)
# At least twice the sum of 1 / m^3 over all m >= 1.
_TWICE_ZETA = 2.4042
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


class Chain(NamedTuple):
    """Bins on a line.

    Attributes:
        bins: Their number.
        shared: The product of all bins.
        linked: Added to the product of two bins, times a power of `decay`.
        decay: In [0, 1).
        own: Added to the product of a bin with itself.
    """

    bins: int
    shared: float
    linked: float
    decay: float
    own: float

    @property
    def variance(self) -> float:
        """The variance of the likelihood ratio."""
        distance = np.arange(self.bins)
        products = self.shared + self.linked * self.decay**distance
        products[0] += self.own
        pairs = 2.0 * (self.bins - distance)
        pairs[0] /= 2
        return float(pairs @ np.expm1(products)) / self.bins**2


def above(products: Array, ring: Array) -> Chain | None:
    """Returns the chain of least variance that is found to cover the bins.

    Args:
        products: The largest product of two bins at each distance.
        ring: The same, where bins are on a ring.

    Returns:
        A chain; `None` if there is none.
    """
    bins = len(products)
    if not 3 <= bins <= _MOST_BINS or products[0] > _MOST_PRODUCT:
        return None
    found = []
    for gap in sorted({0, *(int(1.3**k) for k in range(24))}):
        if gap > bins // 2:
            break
        distance = np.arange(1, bins - gap)
        # Without a gap there are no turns, and no ring.
        apart = np.minimum(distance, bins - distance)
        covered = ring[apart] if gap else products[distance]
        for shared in np.linspace(0, covered.max(), _SHARED):
            over = np.maximum(covered - shared, 0)
            for decay in _DECAYS:
                linked = float(np.max(over / decay**distance))
                own = float(products[0] - shared - linked)
                if own >= 0:
                    found.append(
                        Chain(bins - gap, float(shared), linked, decay, own)
                    )
    return min(found, key=lambda each: each.variance, default=None)


class Calls(NamedTuple):
    """Upper bounds on the means of `(L - k)+` for a likelihood ratio L.

    Attributes:
        strikes: k, rising.
        means: The bounds.
    """

    strikes: Array
    means: Array


def no_more_than(tree: Spread, chain: Chain) -> Spread:
    """Returns a ratio that dominates what both a tree and a chain dominate."""
    step, found = tree.step, calls_of(chain)
    first = math.ceil(math.log(found.strikes[1]) / step)
    last = math.floor(math.log(found.strikes[-1]) / step)
    points = np.exp(step * np.arange(first, last + 1))
    own = _of_calls(step, first, np.interp(points, *found))
    if chain.shared:
        factor = likelihood.spread_log_normal(math.sqrt(chain.shared), step)
        own = likelihood.spread_product(own, factor)
    low = min(own.first, tree.first)
    size = max(each.first + len(each.masses) for each in (own, tree)) - low
    both = [_means(each, low, size) for each in (own, tree)]
    return _of_calls(step, low, np.minimum(*both))


def _means(ratio: Spread, low: int, size: int) -> Array:
    """Returns the means of `(L - k)+` for points of the grid."""
    points = np.exp(ratio.step * (low + np.arange(size)))
    masses = np.zeros(size)
    masses[ratio.first - low :][: len(ratio.masses)] = ratio.masses
    above = np.cumsum((masses * points)[::-1])[::-1]
    total = np.cumsum(masses[::-1])[::-1]
    return np.asarray(above - points * total + ratio.infinite)


def _of_calls(step: float, first: int, means: Array) -> Spread:
    """Returns the largest ratio of mean 1 whose `(L - k)+` are below these.

    Convex functions below the means are below their convex hull.
    """
    x = np.concatenate([[0.0], np.exp(step * (first + np.arange(len(means))))])
    y = np.minimum.accumulate(np.concatenate([[1.0], means]))
    hull = [0]
    for i in range(1, len(x)):
        while len(hull) > 1:
            a, b = hull[-2:]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    slopes = np.append(np.diff(y[hull]) / np.diff(x[hull]), 0.0)
    masses = np.zeros(len(x))
    masses[hull] = np.diff(slopes, prepend=-1.0)
    return Spread(
        step, first, np.maximum(masses[1:], 0), max(masses[0], 0.0), y[-1]
    )


class _States(NamedTuple):
    """The points of Y.

    Attributes:
        logs: The points, shape `[states]`.
        first: The chances of the first bin.
        moves: The chance of each next point, shape `[states, states]`.
        least: Given Y, the mean of its rounded `e^Y` is at least this of it.
        most: The same, at most.
    """

    logs: Array
    first: Array
    moves: Array
    least: float
    most: float


@functools.lru_cache(maxsize=64)
def calls_of(chain: Chain) -> Calls:
    """Returns bounds for the mean of the bins, without what they share."""
    states = _states(chain)
    largest, parts = _FIRST, [_grid(chain, states, _FIRST)]
    while len(parts) < _MOST_GRIDS and parts[-1].means[-1] > _error(
        chain, 2 * largest
    ):
        largest *= _LARGER
        wider = _grid(chain, states, largest)
        kept = wider.strikes > parts[-1].strikes[-1]
        parts.append(Calls(wider.strikes[kept], wider.means[kept]))
    return Calls(
        np.concatenate([each.strikes for each in parts]),
        np.concatenate([each.means for each in parts]),
    )


def _error(chain: Chain, strike: Any) -> Any:
    """Returns an upper bound on what rounding takes from a mean."""
    # Each convolution adds this to the sum of all masses.
    width = 2 * _POINTS
    of_one = 4 * _ULP * math.sqrt(width) * math.log2(width)
    return strike * (chain.bins * of_one + _LEFT_OUT)


def _grid(chain: Chain, states: _States, largest: float) -> Calls:
    """Returns bounds for k up to the largest one."""
    strikes = np.asarray(largest / _POINTS * np.arange(_POINTS + 1))
    step = chain.bins * largest / _POINTS
    sizes = np.exp(states.logs - chain.linked / 2) / states.least
    terms = np.stack([_term(each, chain.own, step) for each in sizes])
    width = fft.next_fast_len(2 * _POINTS + 1, real=True)
    of_terms = fft.rfft(terms, width, axis=1)
    law = np.zeros([len(sizes), _POINTS + 1])
    law[:, 0] = states.first
    chances, mean = states.first, 0.0
    for number in range(chain.bins):
        if number:
            law, chances = states.moves.T @ law, chances @ states.moves
        mean += float(chances @ sizes) / chain.bins
        law = fft.irfft(fft.rfft(law, width, axis=1) * of_terms, width, axis=1)
        law = law[:, : _POINTS + 1]
        law[law < _NOTHING] = 0.0
    below = np.cumsum(np.cumsum(law.sum(axis=0)))
    puts = largest / _POINTS * np.concatenate([[0.0], below[:-1]])
    # Rounded, L is at least so large in the mean. Times the share, it is at
    # most so large.
    share = states.least / states.most
    kept = strikes[strikes <= largest * share]
    lower_puts = share * np.interp(kept / share, strikes, puts)
    means = np.minimum(mean + puts[: len(kept)], 1 + lower_puts) - kept
    return Calls(kept, np.maximum(means, 0) + _error(chain, 1.0 + kept))


def _term(size: float, own: float, step: float) -> Array:
    """Returns the law of a term on the points of the sum."""
    points = np.asarray(step * np.arange(_POINTS + 2) / size)
    if own:
        with np.errstate(divide="ignore"):
            found = likelihood.cells(np.log(points), math.sqrt(own))
        under_q, under_p = found.under_q[1:-1], found.under_p[1:-1]
    else:
        under_q = under_p = np.diff((points > 1).astype(np.float64))
    return likelihood.to_ends(points, under_q, under_p)[:-1]


def _states(chain: Chain) -> _States:
    """Returns the points of Y, after enough bins that all means are alike."""
    variance, decay = chain.linked, chain.decay
    if not variance:
        one = np.ones(1)
        return _States(np.zeros(1), one, np.ones([1, 1]), 1.0, 1.0)
    noise = math.sqrt(variance * (1 - decay**2))
    step = noise / _STEPS
    # Rounded, Y is sub-Gaussian with this variance.
    spread = (noise**2 + 9 / 4 * step**2) / (1 - decay**2)
    rare = math.log((chain.bins + 1000) ** 2 / _LEFT_OUT) + spread / 2
    bottom = -math.sqrt(2 * spread * rare)
    top = spread + math.sqrt(spread**2 + 2 * spread * rare)
    low, high = math.floor(bottom / step), math.ceil(top / step)
    logs = np.asarray(step * np.arange(low, high + 1))
    moves = _rounded(np.asarray(decay * logs), noise, logs, step)
    first = _rounded(np.zeros(1), math.sqrt(variance), logs, step)[0]
    least = most = 1.0
    power = step
    while power > _NO_STEP:
        even = (math.sinh(power / 2) / (power / 2)) ** 3
        uneven = _TWICE_ZETA * (power / (2 * math.pi)) ** 3
        least *= even * (1 - uneven)
        most *= even * (1 + uneven)
        power *= decay
        first = first @ moves
    most *= math.exp(power**2 / (1 - decay**2))
    return _States(logs, first, moves, least, most)


def _rounded(means: Array, stddev: float, logs: Array, step: float) -> Array:
    """Returns the chances of points for normal variables that are rounded.

    Args:
        means: The means of the variables, shape `[n]`.
        stddev: The stddev of each.
        logs: The points; variables beyond them are lost.
        step: Their distance.
    """
    chances = np.zeros([len(means), len(logs)])
    for piece in (-1, 0, 1):
        for node, weight in zip(_NODES / 2, _WEIGHTS / 2, strict=True):
            u = piece + node
            height = 0.75 - u**2 if piece == 0 else (1.5 - abs(u)) ** 2 / 2
            z = (logs + u * step - means[:, None]) / stddev
            chances += weight * height * np.exp(-(z**2) / 2)
    chances *= step / stddev / math.sqrt(2 * math.pi)
    # Denormal numbers take much time, and 1e-40 is far below what is left out.
    return np.where(chances < _NOTHING, 0.0, chances)
