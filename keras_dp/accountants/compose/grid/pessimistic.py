"""Two pairs of laws on a grid of losses, one above a law and one below it.

`H(y) = E_Q[(L - y)_+]` with `L = dP/dQ` is delta at `epsilon = log y`. A
measure on the grid, of weight `w_j` under `Q` at the ratio `y_j = e^(l_j)`,
has `sum_j w_j (y_j - y)_+`. If one is above, or below, the other for all `y`,
then so are the compositions with anything else, as a composition is

    H_12(y) = E_Q2[L_2 H_1(y / L_2)],

an integral of `H_1` with weights that are not negative. It does not matter
whether the measures have the total one. Both pairs here are off by the second
order of the step.

Above: the masses of a cell go to both of its ends so that both are kept. `H`
becomes its chord in each cell, and `H` is convex.

Below: the same, less `G_j` at each point, the larger one of the largest
distances between `H` and its chord in the cells on both sides. In a cell with
the mass `r` of `Q`, the share `a` of which went to the right, `H` is above its
tangents at both ends, and they are `r a (1-a) (y_(j+1) - y_j)` below the chord
where they meet. So the line through the lowered ends is below `H`. The second
differences of `G` are taken from the weights. Those that become negative are
not convex there: `-w` at a point is moved to both neighbours so that the mean
is kept, which is lower still.

Where the loss has a finite end, it often nearly has an atom there. A point of
the grid is then put where the mean of `L` in the two outermost cells is, and
their masses are merged in it: `H` becomes its tangents there.

Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022),
arXiv:2207.04380v3, Section 3, for the pair above. The one below is ours.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.compose.grid.coarse import inner_ends, within
from keras_dp.accountants.loss.loss_distribution import LossLaw

# Where tails are looked for: near the mean in steps of a quarter of a standard
# deviation, then by powers.
_NEAR = np.linspace(-40.0, 40.0, 321)
_FAR = 40.0 * 2.0 ** np.arange(0.25, 24.0, 0.25)
_PLACES = np.concatenate([-_FAR[::-1], _NEAR, _FAR])
# And near a finite end.
_CLOSE = 2.0 ** -np.arange(0.5, 50.0, 0.5)
# Edges that masses are asked for at a time.
_CHUNK = 1 << 17
_LEAST_CELLS = 8
# How much more a cell may hold than its neighbour.
_STEADY = 2.0
_MOST_REPAIRS, _MOST_LEFT, _FURTHER = 300, 1000, 1000
_BISECTIONS = 60


class Span(NamedTuple):
    """The losses of a law that have a share in the result.

    Attributes:
        low: Lower end.
        high: Upper end.
    """

    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class GridPairs:
    """Weights `e^(tilt l) P(l) / M` of both pairs on a grid.

    Attributes:
        offset: The loss at the index 0.
        first: Index of the first point.
        above: Weights of the pair above.
        below: Weights of the pair below, at the same points.
        anchor: Index of the point where the merged cells are, if any.
        log_moment: `log M`, as far as it matters.
        infinite: Mass of `P` that the pair above has at infinity.
    """

    offset: float
    first: int
    anchor: int | None
    log_moment: float
    above: Array
    below: Array
    infinite: float


def span_of(
    law: LossLaw,
    tilt: float,
    moments: list[float],
    log_weight: float,
    log_mass: float,
) -> Span:
    """Returns where to cut a law off.

    Args:
        law: The law.
        tilt: Of the weights `e^(tilt l)`.
        moments: Log of the moment at `tilt`, mean and standard deviation of
            the loss with these weights.
        log_weight: Log of the weight that may be cut off below.
        log_mass: Log of the mass of `P` that may be cut off above.
    """
    log_moment, mean, stddev = moments
    least, most = law.support
    edges = [mean + stddev * _PLACES]
    for end, side in (least, 1), (most, -1):
        if math.isfinite(end):
            edges.append(end + side * (stddev + abs(mean - end)) * _CLOSE)
    places = within(law, np.concatenate(edges))
    log_p, _ = law.log_masses(places)
    weights = log_p[:-1] + tilt * places - log_moment
    below = np.logaddexp.accumulate(weights)
    above = np.logaddexp.accumulate(log_p[::-1])[::-1][1:]
    start = int(np.searchsorted(below, log_weight)) - 1
    stop = int(np.count_nonzero(above > log_mass))
    low = float(places[max(start, 0)])
    high = float(places[min(stop, places.size - 1)])
    if start < 0 and math.isfinite(least):
        low = least
    if stop == places.size and math.isfinite(most):
        high = most
    return Span(low, high)


def grid_pairs(
    law: LossLaw, tilt: float, log_moment: float, span: Span, step: float
) -> GridPairs:
    """Returns both pairs on a grid of width `step` over `span`."""
    offset, anchor = _offset(law, span, step)
    first = math.floor((span.low - offset) / step)
    last = max(math.ceil((span.high - offset) / step), first + _LEAST_CELLS)
    if anchor < 0:
        first, last = -1, max(last, 1)
    elif anchor > 0:
        first, last = min(first, -1), 1
    losses = offset + step * np.arange(first, last + 1, dtype=np.float64)
    log_p, log_r = _masses(law, losses)
    tails = log_p[0], log_r[-1], log_p[-1]
    log_p, log_r = log_p[1:-1], log_r[1:-1]
    cell = math.expm1(step)
    with np.errstate(invalid="ignore"):
        rise = np.expm1(np.clip(log_p - log_r - losses[:-1], 0.0, step))
    share = np.where(log_r > -np.inf, rise / cell, 0.0)
    mass = np.exp(log_r + (1 + tilt) * losses[:-1] - log_moment)
    power = math.exp((1 + tilt) * step)
    above = _connected(mass, share, power)
    above[0] += math.exp(tails[0] + tilt * losses[0] - log_moment)
    kept = math.exp(tails[1] + (1 + tilt) * losses[-1] - log_moment)
    below = _lowered(mass, share, kept, anchor, step, tilt)
    place = None if anchor == 0 else 0
    infinite = math.exp(tails[2])
    return GridPairs(offset, first, place, log_moment, above, below, infinite)


def _offset(law: LossLaw, span: Span, step: float) -> tuple[float, int]:
    """Returns the loss at index 0, and at which end that is a mean, if any."""
    least, most = law.support
    if span.low < least + step and (found := _mean_at_end(law, least, step)):
        return found, -1
    if span.high > most - step and (found := _mean_at_end(law, most, -step)):
        return found, 1
    return 0.0, 0


def _mean_at_end(law: LossLaw, end: float, step: float) -> float | None:
    """Returns the log of the mean of `L` in two cells, one `step` inwards.

    The second edge is `step` away from it, and nothing is beyond `end`, from
    which it is less than `step` away. None if it were further away.
    """
    side = 0 if step > 0 else 1

    def mean(edge: float) -> float:
        log_p, log_r = law.log_masses(np.array([edge]))
        return float(log_p[side]) - float(log_r[side])

    near, far = end + step, end + 2 * step
    if not (end + step - mean(far)) / step >= 0:
        return None
    for _ in range(_BISECTIONS):
        middle = (near + far) / 2
        if (middle - step - mean(middle)) / step < 0:
            near = middle
        else:
            far = middle
    return mean(far)


def _masses(law: LossLaw, losses: Array) -> tuple[Array, Array]:
    """Returns logs of the masses of the cells and of both tails."""
    least, most = inner_ends(law)
    log_p = np.full(losses.size + 1, -np.inf)
    log_r = log_p.copy()
    # Outside of the support, and what rounding does not tell apart from it.
    first = int(np.searchsorted(losses, least))
    last = int(np.searchsorted(losses, most))
    for start in range(first, max(last, first + 1), _CHUNK):
        edges = losses[start : min(start + _CHUNK + 1, last)]
        p, r = law.log_masses(edges)
        skipped = 0 if start == first else 1
        cells = slice(start + skipped, start + edges.size + 1)
        log_p[cells], log_r[cells] = p[skipped:], r[skipped:]
    return log_p, log_r


def _connected(mass: Array, share: Array, power: float) -> Array:
    weights = np.zeros(mass.size + 1)
    weights[:-1] = mass * (1 - share)
    weights[1:] += mass * share * power
    return weights


def _lowered(
    mass: Array,
    share: Array,
    kept: float,
    anchor: int,
    step: float,
    tilt: float,
) -> Array:
    """Returns the weights of the pair below."""
    power = math.exp((1 + tilt) * step)
    rounded = _connected(mass, np.zeros_like(share), power)
    rounded[-1] += kept
    share, cell = share.copy(), math.expm1(step)
    gaps = mass * cell * share * (1 - share)
    if anchor < 0:
        share[0], share[1], gaps[:2] = 1.0, 0.0, 0.0
    if anchor > 0:
        share[-2], share[-1], gaps[-2:] = 1.0, 0.0, 0.0
    else:
        stop = _steady_end(mass, power)
        share[stop:] = gaps[stop:] = 0.0
    weights = _connected(mass, share, power)
    weights[-1] += kept
    distance = np.zeros(mass.size + 1)
    distance[:-1] = gaps
    grown = gaps * math.exp(tilt * step)
    np.maximum(distance[1:], grown, out=distance[1:])
    rise = (distance[1:] * math.exp(-tilt * step) - distance[:-1]) / cell
    weights[:-1] -= rise
    weights[1:] += rise * power
    if _repaired(weights, step, power):
        return weights
    return rounded


def _steady_end(mass: Array, power: float) -> int:
    """Returns up to which cell masses of `Q` fall slowly, at the upper end.

    Beyond it cells are rounded down: where the last gap was taken off there
    must be more weight than it has differences.
    """
    falls_slowly = mass[2:] * _STEADY >= mass[:-2] * power**2
    falls_slowly &= mass[:-2] > 0
    return mass.size - 1 - int(np.argmax(falls_slowly[::-1]))


def _repaired(weights: Array, step: float, power: float) -> bool:
    """Moves negative weights to their neighbours, until there are none.

    Returns:
        Whether that came to an end, and without going beyond the last point.
    """
    places = np.flatnonzero(weights < 0)
    left = 1 / (1 + math.exp(-step)) / power
    right = power / (1 + math.exp(step))
    for _ in range(_MOST_REPAIRS):
        if not places.size:
            return True
        if places[-1] == weights.size - 1:
            return False
        lack = weights[places]
        weights[places] = 0.0
        inner = places > 0
        np.add.at(weights, places[inner] - 1, lack[inner] * left)
        np.add.at(weights, places + 1, lack * np.where(inner, right, power))
        near = np.unique(np.concatenate([places - 1, places + 1]).clip(0))
        places = near[weights[near] < 0]
    # From further right, which is lower still; little is left.
    for place in places[:_MOST_LEFT].tolist():
        lack = -weights[place]
        others = weights[place + 1 : place + 1 + _FURTHER]
        wanted = lack * power ** np.arange(1.0, others.size + 1)
        is_rich = others > 2 * wanted
        if not is_rich.any():
            return False
        first = int(np.argmax(is_rich))
        others[first] -= wanted[first]
        weights[place] = 0.0
    return places.size <= _MOST_LEFT
