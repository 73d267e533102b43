"""One coordinate's privacy loss, moved to the points of a lattice.

The line is cut into cells so short that the loss moves by less than a step of
the lattice in each. A cell goes to the lattice points next below and above
all of its losses, in shares that keep the mass of both laws. That spreads the
likelihood ratio without moving its mean: every f-divergence grows, and the
result dominates the coordinate.

Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022),
arXiv:2207.04380v1, "connecting the dots". We differ in the cells, which are
of the noise and not of the loss, so that nothing has to be inverted.
"""

import math

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.encoded.coordinates import Coordinates

# Cells per step of the lattice.
_CELLS = 2.0
# Cells before they are cut: where the loss is all but constant, few do.
_INSIDE, _OUTSIDE = 1000, 3000
# What is further out counts as being there.
_LEAST_MASS = 1e-40
# Tilts that cover what is asked for, if they do not overflow.
_TILTS = np.array([0.0, 0.5, 1.5, 4.0, 10.0, 25.0, 65.0])
_MOST_EXPONENT = 600.0
# Losses that turn inside a cell go that far beyond its ends, in steps.
_BEYOND = 1e-3
# Losses that near to a lattice point are on it, in steps.
_ON_POINT = 1e-6


def lattice_masses(
    coordinates: Coordinates, step: float
) -> tuple[Array, float]:
    """Returns masses of `H` at `-m, ..., m` steps, `m` as large as needed.

    `H` is halfway between the two laws: a mass `q` of the resting noise at the
    loss `y` is `q e^(y/2)` of it. It is symmetric.

    A function `f` of the likelihood ratio `X = e^y` grows on its way from `y`
    to `a` and `b` by at most `X^2 f'' (y-a) (b-y) / 2`, to the first order of
    the step. The second result is the mean of `(y-a) (b-y) / 2`, the largest
    of those under `e^(u y) dH` for some `u`.
    """
    noise, shift = coordinates.noise, coordinates.shift
    half = shift / 2
    inside = np.linspace(half, 0.0, _INSIDE)
    farthest = math.log(-float(noise.quantile(_LEAST_MASS)))
    u = np.linspace(-5.0, max(farthest, 1.0), _OUTSIDE)
    outside = np.concatenate([[0.0], np.exp(u - np.exp(-u))])
    y_inside, q_inside, p_inside, turns_inside = _cells(
        coordinates, -1.0, inside, step
    )
    y_outside, q_outside, p_outside, turns_outside = _cells(
        coordinates, 1.0, outside, step
    )
    # What is beyond the last cell has its loss.
    beyond = outside[-1]
    low = np.concatenate([y_inside[0], y_outside[0], y_outside[1][-1:]])
    high = np.concatenate([y_inside[1], y_outside[1], y_outside[1][-1:]])
    q = np.concatenate([q_inside, q_outside, noise.cdf([-shift - beyond])])
    p = np.concatenate([p_inside, p_outside, noise.cdf([-beyond])])
    turns = np.concatenate([turns_inside, turns_outside, [False]])
    low, high = np.minimum(low, high), np.maximum(low, high)
    below = np.floor(low / step + _ON_POINT).astype(np.int64) - turns
    above = np.ceil(high / step - _ON_POINT).astype(np.int64) + turns
    above = np.maximum(above, below)
    kept = q > 0
    below, above, q, p = below[kept], above[kept], q[kept], p[kept]
    low, high = low[kept], high[kept]
    # Rounding in differences of masses does not leave the cell.
    slack = _BEYOND * step * turns[kept]
    with np.errstate(divide="ignore"):
        ratio = np.clip(np.log(p) - np.log(q), low - slack, high + slack)
    apart = (above - below) * step
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.expm1(ratio - below * step) / np.expm1(apart)
    share = np.where(above > below, np.clip(share, 0.0, 1.0), 0.0)
    most = int(max(above.max(), -below.min()))
    side = np.bincount(
        below + most,
        q * (1 - share) * np.exp(below * step / 2),
        2 * most + 1,
    )
    side += np.bincount(
        above + most, q * share * np.exp(above * step / 2), 2 * most + 1
    )
    masses = side + side[::-1]
    total = masses @ np.exp(np.arange(-most, most + 1) * (step / 2))
    # The loss inside a cell for which this is largest.
    worst = np.clip((above + below) * step / 2, low, high)
    spread = (worst - below * step) * (above * step - worst) / 2
    means = []
    for u in _TILTS[high.max() * _TILTS < _MOST_EXPONENT]:
        weight = q * np.exp(worst / 2) * np.cosh(u * worst)
        means.append(float(weight @ spread / weight.sum()))
    return masses / total, max(means)


def _cells(
    coordinates: Coordinates, side: float, distances: Array, step: float
) -> tuple[tuple[Array, Array], Array, Array, Array]:
    """Returns losses at both ends, masses of both laws, and where losses turn.

    Args:
        coordinates: Of which one is meant.
        side: Of `shift` that the cells are on, 1 or -1.
        distances: Ends of cells, measured from there, in order.
        step: Of the lattice.
    """
    noise, shift = coordinates.noise, coordinates.shift

    def loss(d: Array) -> Array:
        near = noise.log_density(d)
        return np.asarray(near - noise.log_density(shift + side * d))

    coarse = loss(distances)
    change = np.abs(np.diff(coarse))
    pieces = np.ceil(change / step * _CELLS)
    # Where losses turn they leave the range of a cell's ends by an eighth of
    # the second difference.
    bend = np.abs(np.diff(coarse, 2))
    bend = np.maximum(np.append(bend, 0.0), np.append(0.0, bend))
    finer = np.ceil(np.sqrt(bend / (8 * _BEYOND * step)))
    pieces = np.where(change < 4 * bend, np.maximum(pieces, finer), pieces)
    pieces = np.maximum(pieces, 1).astype(np.int64)
    which = np.repeat(np.arange(pieces.size), pieces)
    first = np.cumsum(pieces) - pieces
    part = (np.arange(which.size) - first[which]) / pieces[which]
    d = distances[which] + part * np.diff(distances)[which]
    d = np.append(d, distances[-1])
    y = loss(d)
    own = noise.cdf(-(shift + side * d))
    moved = noise.cdf(-d) if side > 0 else noise.cdf(d)
    q = np.abs(np.diff(own))
    p = np.abs(np.diff(moved))
    rising = np.diff(y)
    rising[np.abs(rising) < _ON_POINT * step] = 0.0
    turns = np.zeros(rising.size, bool)
    opposite = rising[1:] * rising[:-1] < 0
    turns[1:] |= opposite
    turns[:-1] |= opposite
    return (y[:-1], y[1:]), q, p, turns
