"""Sampled Gaussian rounds of many kinds, at the cost of a few hundred.

With `X = N(1, z^2) / N(0, z^2)` under `N(0, z^2)` and `v = 1 / z^2`, the moment
of order `a > 1` of a sampled round is

    M(q, v) = E[Y^a],  Y = 1 - q + q X.

It is convex in `q`, and in `v` too: `X` is a martingale in `v`, whose logarithm
has the variance `v`, so that `d/dv E[g(X)] = E[X^2 g''(X)] / 2`. Twice applied
to `g = Y^a`, with `c = 1 - q` and `t = Y / c >= 1`,

    E[(Y - c)^2 Y^(a-2) (a (a-1) t^2 - 2 (a-1) (a-2) t + (a-2) (a-3)) / t^2]

is `4 / (a (a-1))` times the second derivative in `v`, and the bracket is 2 at
`t = 1` and rises from there. So in a cell of a grid over `q` and `v` a mean of
the moments of its corners, with the weights of bilinear interpolation, is never
below the moment. The logarithm of such a mean is concave in the weights: for
all rounds of one cell it is at most that of their mean weights. A cell then
costs as much as one round.

Source: Price (1958), IRE Transactions on Information Theory 4, for the
derivative; Jensen's inequality for the mean.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from keras_dp.accountants.arrays import EXPONENT, Array

# So many kinds are taken one by one.
_FEW = 512
# Lines of a grid in each direction; and corners that a grid may have.
_GRIDS = (512, 256, 128, 64, 32, 24, 16)
_MOST_CORNERS = 1100
# Two roundings of float64: less noise is more than none.
_ROUND_DOWN = 1 - 1e-15


class SampledNoise(Protocol):
    """A mechanism of a noise and a sampling."""

    @property
    def noise_multiplier(self) -> float:
        """Its `z`, > 0."""

    @property
    def sampling_probability(self) -> float:
        """Its `q`, in (0, 1)."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Rounds as means of a few of them.

    Attributes:
        probabilities: `q` of the corners, shape `[corners]`.
        noise_multipliers: `z` of the corners, shape `[corners]`.
        corners: The corners of each cell, shape `[cells, 4]`.
        weights: Their mean weights, of the same shape; in each row they add up
            to 1.
        counts: The rounds in each cell, shape `[cells]`.
    """

    probabilities: Array
    noise_multipliers: Array
    corners: NDArray[np.int64]
    weights: Array
    counts: Array

    def total(self, log_moments: Array) -> Array:
        """Returns a bound on the sum of the log moments of all rounds.

        Args:
            log_moments: The log moments of the corners, shape `[n, corners]`.

        Returns:
            Shape `[n]`.
        """
        logs = log_moments[:, self.corners]
        peak = logs.max(axis=-1)
        small = np.expm1(np.minimum(logs, EXPONENT)) * self.weights
        large = np.exp(logs - peak[..., None]) * self.weights
        each = np.where(
            peak < EXPONENT,
            np.log1p(small.sum(axis=-1)),
            peak + np.log(large.sum(axis=-1)),
        )
        return np.asarray(each @ self.counts)


def cells_of(mechanisms: Sequence[SampledNoise], counts: Array) -> Cells:
    """Returns the rounds one by one if they are few, else in cells.

    Args:
        mechanisms: Kinds of rounds.
        counts: How many there are of each, shape `[mechanisms]`.
    """
    q = np.array([each.sampling_probability for each in mechanisms])
    z = np.array([each.noise_multiplier for each in mechanisms])
    if counts.size <= _FEW:
        alone = np.arange(counts.size)[:, None]
        return Cells(q, z, alone, np.ones(alone.shape), counts)
    v = z**-2.0
    for lines in _GRIDS:
        grid = _grid(q, v, counts, lines)
        if grid.probabilities.size <= _MOST_CORNERS:
            break
    return grid


def _grid(q: Array, v: Array, counts: Array, lines: int) -> Cells:
    """Returns the cells of a grid that hold rounds, and their corners."""
    q_lines, q_cell, q_share = _between(q, lines)
    v_lines, v_cell, v_share = _between(v, lines)
    columns = v_lines.size
    occupied, of = np.unique(q_cell * columns + v_cell, return_inverse=True)
    total = np.bincount(of, counts)
    q_shares, v_shares = (1 - q_share, q_share), (1 - v_share, v_share)
    corners, weights = [], []
    for right in (0, 1):
        for upper in (0, 1):
            share = counts * q_shares[right] * v_shares[upper]
            weights.append(np.bincount(of, share) / total)
            corners.append(occupied + right * columns + upper)
    weight = np.stack(weights, axis=1)
    # A corner without weight stands for its cell's first one.
    corner = np.stack(corners, axis=1)
    corner = np.where(weight > 0, corner, corner[:, :1])
    weight /= weight.sum(axis=1, keepdims=True)
    used, places = np.unique(corner, return_inverse=True)
    return Cells(
        q_lines[used // columns],
        v_lines[used % columns] ** -0.5 * _ROUND_DOWN,
        places.reshape(corner.shape),
        weight,
        np.asarray(total, np.float64),
    )


def _between(
    values: Array, lines: int
) -> tuple[Array, NDArray[np.int64], Array]:
    """Returns lines, the one below each value, and the way to the next one.

    The last line is doubled, so that every line has a next one.
    """
    own = np.unique(values)
    if own.size > lines:
        # The largest values count most, and the least ones are of all sizes.
        low, high = own[0], own[-1]
        far = np.linspace(low, high, lines // 2 + 2)[1:-1]
        own = np.union1d(np.geomspace(low, high, lines - far.size), far)
        own[[0, -1]] = low, high
    below = np.searchsorted(own, values, side="right") - 1
    own = np.append(own, own[-1])
    width = own[below + 1] - own[below]
    way = values - own[below]
    share = np.divide(way, width, out=np.zeros_like(way), where=way > 0)
    return own, below, share
