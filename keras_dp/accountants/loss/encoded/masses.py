"""Masses between losses, from a law on a lattice."""

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.encoded.lattice import Lattice

# Between the middle two of six equally spaced points, at 0, 1, ...
_NODES, _WEIGHTS = legendre.leggauss(4)
_NODES, _WEIGHTS = (5 + _NODES) / 2, _WEIGHTS / 2
# Lagrange's polynomials there, shape [6, nodes].
_RULE = np.linalg.solve(
    np.vander(np.arange(6.0), increasing=True).T,
    np.vander(_NODES, 6, increasing=True).T,
)


def log_masses(found: Lattice, edges: Array) -> tuple[Array, Array]:
    """Returns logs of the masses of both laws between the losses `edges`.

    The resting law and the moved one. A loss on an edge is below it.

    Args:
        found: The law halfway between them.
        edges: Not falling; `-inf` is below everything.
    """
    y = found.losses
    half = y / 2
    if found.spread:
        starts = np.searchsorted(y, edges, side="right")
        return (
            _sums(found.log_masses - half, starts),
            _sums(found.log_masses + half, starts),
        )
    density = found.log_masses - np.log(found.step)
    own = _Tail(y, density - half, found.step)
    moved = _Tail(y, density + half, found.step)
    # The mirror image of either law is the other.
    return _between(own, moved, edges), _between(moved, own, edges)


class _Tail:
    """Log of the mass above any loss."""

    __slots__ = ("_log_tail", "_slope", "_start", "_step")

    def __init__(self, y: Array, log_density: Array, step: float) -> None:
        # The logarithm is nearly a parabola, however far out.
        ends = np.diff(log_density)[[0, -1]]
        steps = np.arange(1, 3)
        padded = np.concatenate(
            [
                log_density[0] - steps[::-1] * ends[0],
                log_density,
                log_density[-1] + steps * ends[1],
            ]
        )
        windows = np.lib.stride_tricks.sliding_window_view(padded, 6)
        reference = np.maximum(log_density[1:], log_density[:-1])
        inside = np.exp(windows @ _RULE - reference[:, None])
        cells = np.log(inside @ _WEIGHTS) + reference + np.log(step)
        tail = np.logaddexp.accumulate(cells[::-1])[::-1]
        self._start, self._step = float(y[0]), step
        self._log_tail = np.append(np.minimum(tail, 0.0), -np.inf)
        with np.errstate(invalid="ignore"):
            slope = -np.exp(log_density - self._log_tail)
        self._slope = np.where(np.isfinite(self._log_tail), slope, 0.0)

    def at(self, edges: Array) -> Array:
        """Returns the log of the mass above each edge."""
        place = (edges - self._start) / self._step
        last = self._log_tail.size - 1
        inside = (place > 0) & (place < last)
        place = np.where(inside, place, 0.0)
        cell = np.minimum(place.astype(np.int64), last - 1)
        t = place - cell
        left, right = self._log_tail[cell], self._log_tail[cell + 1]
        first = self._slope[cell] * self._step
        second = self._slope[cell + 1] * self._step
        with np.errstate(invalid="ignore"):
            rise = right - left
            curve = left + t * t * (3 - 2 * t) * rise
            curve += t * (1 - t) * ((1 - t) * first - t * second)
        # The last cell has nothing beyond it to interpolate to.
        curve = np.where(np.isfinite(right), curve, left + np.log1p(-t))
        return np.where(
            inside, curve, np.where(edges < self._start, 0, -np.inf)
        )


def _between(own: _Tail, mirrored: _Tail, edges: Array) -> Array:
    above = np.concatenate([[0.0], own.at(edges), [-np.inf]])
    below = np.concatenate([[-np.inf], mirrored.at(-edges), [0.0]])
    upper = _log_difference(above[:-1], above[1:])
    lower = _log_difference(below[1:], below[:-1])
    return np.where(above[:-1] < below[1:], upper, lower)


def _log_difference(larger: Array, smaller: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = larger + np.log1p(-np.exp(np.minimum(smaller - larger, 0.0)))
    return np.where(np.isneginf(larger), -np.inf, found)


def _sums(logs: Array, starts: NDArray[np.intp]) -> Array:
    """Returns logs of sums between consecutive `starts`."""
    ends = np.concatenate([[0], starts, [logs.size]])
    filled = np.flatnonzero(np.diff(ends))
    result = np.full(ends.size - 1, -np.inf)
    if filled.size:
        first = ends[filled]
        largest = np.maximum.reduceat(logs, first)
        largest = np.where(np.isfinite(largest), largest, 0.0)
        lengths = np.diff(np.append(first, logs.size))
        scaled = np.exp(logs - np.repeat(largest, lengths))
        with np.errstate(divide="ignore"):
            result[filled] = np.log(np.add.reduceat(scaled, first)) + largest
    return result
