"""Distributions of likelihood ratios on a geometric grid, from both sides.

The hockey-stick divergences of a pair are means of convex functions of the
likelihood ratio `R = dP/dQ` under `Q`: `(R - e^eps)+`, and `(1 - e^eps R)+` the
other way round. So a ratio that is larger in the convex order, as one whose
mass is spread to both sides without moving its mean, dominates in *both*
directions, and one whose mass is drawn together at its mean is dominated. Sums
and products of independent ratios keep the order.

Both are exact to the second order of the grid's step.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import special

from keras_dp.accountants.arrays import Array

# Normal variables are cut off at this many stddevs: 1e-21 of their mass is
# beyond.
TAIL = 9.5

_Ratio = TypeVar("_Ratio")


class Spread(NamedTuple):
    """A ratio on the points `e^(k step)`, larger than another in convex order.

    Attributes:
        step: Distance of the logarithms of the points.
        first: `k` of the first point.
        masses: Under `Q`, of the points.
        zero: Mass under `Q` of the ratio 0.
        infinite: Mass under `P` of the ratio infinity, which has none under
            `Q`.
    """

    step: float
    first: int
    masses: Array
    zero: float
    infinite: float

    @property
    def logs(self) -> Array:
        """Logarithms of the points."""
        return np.asarray(
            self.step * (self.first + np.arange(len(self.masses)))
        )


class Drawn(NamedTuple):
    """A ratio on some points, smaller than another in convex order.

    Attributes:
        points: >= 0, rising.
        masses: Under `Q`.
    """

    points: Array
    masses: Array


class Cells(NamedTuple):
    """Masses below the first of some edges, between them, and above the last.

    Attributes:
        under_q: Masses under `Q`.
        under_p: Masses under `P`, which are means of the ratio under `Q`.
    """

    under_q: Array
    under_p: Array


def cells(edges: Array, stddev: float) -> Cells:
    """Returns masses of a log-normal ratio of mean 1, between some numbers.

    Args:
        edges: Logarithms, rising, shape `[n]`.
        stddev: Standard deviation of the logarithm, > 0.
    """
    half = stddev**2 / 2
    return Cells(
        between((edges + half) / stddev), between((edges - half) / stddev)
    )


def reach(stddev: float) -> float:
    """Returns the largest size of the log of a log-normal ratio of mean 1."""
    return TAIL * stddev + stddev**2 / 2


def sampled_range(stddev: float, q: float) -> tuple[float, float]:
    """Returns where the log of `1 - q + q W` is, with `W` log-normal."""
    far = reach(stddev)
    low = math.log1p(q * math.expm1(-far))
    return low, far + math.log(q + (1 - q) * math.exp(-far))


def cells_of_inner(edges: Array, stddev: float, q: float) -> Cells:
    """Returns masses of `W` where `log(1 - q + q W)` is between numbers."""
    # log(1 + (e^edge - 1) / q), which is -inf below 1 - q.
    inner = np.maximum(np.expm1(edges) / q, -1.0)
    with np.errstate(divide="ignore"):
        return cells(np.log1p(inner), stddev)


def repeated(
    one: _Ratio, count: int, together: Callable[[_Ratio, _Ratio], _Ratio]
) -> _Ratio:
    """Returns `count` >= 1 equal ratios put together, by doubling."""
    total = None
    while True:
        if count & 1:
            total = one if total is None else together(total, one)
        count >>= 1
        if not count and total is not None:
            return total
        one = together(one, one)


def between(u: Array) -> Array:
    """Returns the normal masses between numbers, relatively precise."""
    below, above = special.ndtr(u), special.ndtr(-u)
    inner = np.where(u[:-1] < 0, np.diff(below), -np.diff(above))
    return np.concatenate([below[:1], np.maximum(inner, 0), above[-1:]])


def spread_of_cells(step: float, first: int, found: Cells) -> Spread:
    """Returns a ratio whose mass in each cell is moved to its two ends.

    Args:
        step: See `Spread`.
        first: See `Spread`.
        found: The masses of the cells.
    """
    under_q, under_p = found
    points = np.exp(step * (first + np.arange(len(under_q) - 1)))
    masses = to_ends(points, under_q[1:-1], under_p[1:-1])
    # Below, between 0 and the first point; above, between 0 and infinity.
    masses[0] += under_p[0] / points[0]
    zero = max(0.0, under_q[0] - under_p[0] / points[0]) + under_q[-1]
    return Spread(step, first, masses, float(zero), float(under_p[-1]))


def to_ends(points: Array, under_q: Array, under_p: Array) -> Array:
    """Returns the masses of points to which those between them have moved.

    Args:
        points: >= 0, rising, shape `[n + 1]`.
        under_q: The masses between them, shape `[n]`.
        under_p: Their means, of the same shape.
    """
    low, high = points[:-1], points[1:]
    masses = np.zeros(len(points))
    masses[:-1] += np.maximum(high * under_q - under_p, 0) / (high - low)
    masses[1:] += np.maximum(under_p - low * under_q, 0) / (high - low)
    return masses


def spread_log_normal(stddev: float, step: float) -> Spread:
    """Returns a spread log-normal ratio of mean 1."""
    first = -math.ceil(reach(stddev) / step)
    edges = np.asarray(step * np.arange(first, -first + 1))
    return spread_of_cells(step, first, cells(edges, stddev))


def spread_sum(one: Spread, two: Spread) -> Spread:
    """Returns the sum of two independent ratios, spread onto the grid.

    `e^(i step) + e^(j step)` is `e^(i step)` times a number that `j - i` tells:
    all pairs of one distance are moved by as many points, and split alike.
    """
    step, apart, is_same = one.step, two.first - one.first, one is two
    a, b = one.masses, two.masses
    # The first and the last point of the sum, counted from the first one of
    # `a`.
    ends = np.array([[0, apart], [len(a) - 1, apart + len(b) - 1]])
    low, high = np.logaddexp(*(step * ends).T) / step
    base = math.floor(low) - 1
    out = np.zeros(math.floor(high) - base + 3)
    distances = apart + np.arange(0 if is_same else 1 - len(a), len(b))
    far = np.logaddexp(0, step * distances) / step
    shifts = np.floor(far)
    # (e^step - e^x) / (e^step - 1) for the part x of a step.
    rights = np.expm1((far - shifts) * step) / math.expm1(step)
    for distance, shift, right in zip(
        distances.tolist(), shifts.tolist(), rights.tolist(), strict=True
    ):
        skipped = distance - apart
        start, stop = max(0, -skipped), min(len(a), len(b) - skipped)
        products = a[start:stop] * b[start + skipped : stop + skipped]
        if is_same and distance:
            products *= 2
        place = start + int(shift) - base
        out[place : place + stop - start] += (1 - right) * products
        out[place + 1 : place + 1 + stop - start] += right * products
    zero = one.zero * two.zero
    # If one ratio is 0, the sum is the other ratio, which may be below the
    # grid.
    for chance, other, first in ((one.zero, b, apart), (two.zero, a, 0)):
        below = min(max(0, base - first), len(other))
        share = np.exp(step * (first - base + np.arange(below)))
        out[0] += chance * float(share @ other[:below])
        zero += chance * float((1 - share) @ other[:below])
        start = first + below - base
        out[start : start + len(other) - below] += chance * other[below:]
    return _trimmed(
        Spread(
            step,
            one.first + base,
            out,
            zero,
            one.infinite + two.infinite,
        )
    )


def spread_product(one: Spread, two: Spread) -> Spread:
    """Returns the product of two independent ratios on one grid.

    Args:
        one: The first, of any mean.
        two: The second, of mean 1.
    """
    mean = float(np.exp(one.logs) @ one.masses) + one.infinite
    return _trimmed(
        Spread(
            one.step,
            one.first + two.first,
            np.convolve(one.masses, two.masses),
            one.zero + two.zero,
            one.infinite + two.infinite * mean,
        )
    )


# The outermost points, with less mass than this together, go to 0 and infinity.
_LEAST_MASS = 1e-25


def _trimmed(each: Spread) -> Spread:
    """Returns the ratio without the outermost points, spread further."""
    logs, masses = each.logs, each.masses
    points = np.exp(logs)
    above = np.cumsum((points * masses)[::-1])[::-1]
    scale = float(above[0]) or 1.0
    keep_high = int((above > _LEAST_MASS * scale).sum())
    below = np.cumsum(masses)
    drop = int((below <= _LEAST_MASS).sum())
    drop = min(drop, keep_high - 1)
    kept = masses[drop:keep_high].copy()
    kept[0] += float((points * masses)[:drop].sum()) / points[drop]
    lost = float((masses[:drop] * (1 - points[:drop] / points[drop])).sum())
    high = float((points * masses)[keep_high:].sum())
    return Spread(
        each.step,
        each.first + drop,
        kept,
        each.zero + lost + float(masses[keep_high:].sum()),
        each.infinite + high,
    )


def drawn_log_normal(stddev: float, step: float) -> Drawn:
    """Returns a log-normal ratio of mean 1, drawn together in each cell."""
    count = math.ceil(reach(stddev) / step)
    edges = np.asarray(step * np.arange(-count, count + 1))
    return drawn_of_cells(cells(edges, stddev))


def drawn_sum(one: Drawn, two: Drawn, step: float) -> Drawn:
    """Returns the sum of two independent ratios, drawn together in cells."""
    return _drawn_together(one.points[:, None] + two.points, one, two, step)


def drawn_product(one: Drawn, two: Drawn, step: float) -> Drawn:
    """Returns the product of two independent ratios, as `drawn_sum` does."""
    return _drawn_together(one.points[:, None] * two.points, one, two, step)


def _drawn_together(
    values: Array, one: Drawn, two: Drawn, step: float
) -> Drawn:
    values = values.ravel()
    masses = (one.masses[:, None] * two.masses).ravel()
    cell = np.floor(np.log(np.maximum(values, 1e-300)) / step).astype(np.int64)
    cell -= cell.min()
    under_q = np.bincount(cell, masses)
    under_p = np.bincount(cell, masses * values)
    return drawn_of_cells(
        Cells(np.asarray(under_q, np.float64), np.asarray(under_p, np.float64))
    )


def drawn_of_cells(found: Cells) -> Drawn:
    """Returns a ratio whose mass in each cell is at its mean there."""
    under_q, under_p = found
    kept = under_q > 0
    under_q, under_p = under_q[kept], under_p[kept]
    # The outermost cells have hardly any mass, but are many. They become one.
    below = np.cumsum(under_q) <= _LEAST_MASS
    above = np.cumsum(under_p[::-1])[::-1] <= _LEAST_MASS * under_p.sum()
    middle = ~(below | above)
    parts_q = [under_q[below].sum(), *under_q[middle], under_q[above].sum()]
    parts_p = [under_p[below].sum(), *under_p[middle], under_p[above].sum()]
    q, p = np.array(parts_q), np.array(parts_p)
    some = q > 0
    return Drawn(p[some] / q[some], q[some])
