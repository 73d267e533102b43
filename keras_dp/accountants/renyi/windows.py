"""Where the integrand of a Rényi divergence has its mass.

The envelope of `_pairs` is a parabola plus a sum of logistic terms. It is
concave, then convex, then concave, and so it has one peak, or two with a
valley between: near 0 the record was not in the sample, near `order / noise`
it was. The two can be a million apart, and each is about one wide.
"""

import dataclasses
from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.renyi.mixture_pairs import Pairs

# What lies this far below the peak, in nats, is left out.
_DEPTH = 42.0
# The ends of a window are found to this precision, in noise stddevs.
_PRECISION = 0.05


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """One interval a row; empty where `end < start`."""

    start: Array
    end: Array

    def only(self, condition: NDArray[np.bool_]) -> Self:
        """Returns the windows that fulfil `condition`, the others empty."""
        return dataclasses.replace(
            self,
            start=np.where(condition, self.start, np.inf),
            end=np.where(condition, self.end, -np.inf),
        )

    def joined(self, other: Self) -> Self:
        """Returns the least windows that contain both."""
        return dataclasses.replace(
            self,
            start=np.minimum(self.start, other.start),
            end=np.maximum(self.end, other.end),
        )


def windows(pairs: Pairs) -> tuple[Windows, Windows]:
    """Returns two disjoint windows a row outside of which there is nothing.

    "Nothing" is an integrand below `exp(-42)` times its peak.

    Args:
        pairs: Rows, as arrays of shape `[n]`.
    """
    first, valley, second, two_peaks = _peaks(pairs, _convex_part(pairs))
    level = _peak_value(pairs, first, second) - _DEPTH
    edges = _edges(pairs, first, valley, second, level)
    lower = Windows(edges[0], edges[1])
    upper = Windows(edges[2], edges[3])
    lower = lower.only(pairs.envelope(first) >= level)
    upper = upper.only(pairs.envelope(second) >= level)
    deep = two_peaks & (pairs.envelope(valley) < level)
    lower = lower.joined(upper.only(~deep)).joined(_lobe(pairs, level))
    upper = upper.only(deep)
    apart = upper.start > lower.end
    return lower.joined(upper.only(~apart)), upper.only(apart)


def _edges(
    pairs: Pairs, first: Array, valley: Array, second: Array, level: Array
) -> Array:
    """Returns where the envelope passes `level`, on both sides of each peak.

    Shape `[4, n]`, a little too far out. Where a peak is below the level its
    edges mean nothing.
    """
    left = np.minimum(first, -np.sqrt(2 * np.maximum(-level, 0)) - 1)
    right = np.sqrt(2 * np.maximum(pairs.envelope(second) - level, 0)) + 1
    right = np.maximum(second, _largest_peak(pairs)) + right
    signs = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    low, high = _bisect(
        np.stack([left, first, valley, second]),
        np.stack([first, valley, second, right]),
        lambda x: signs * (pairs.envelope(x) - level) < 0,
    )
    return np.stack([low[0], high[1], low[2], high[3]])


def _lobe(pairs: Pairs, level: Array) -> Windows:
    """Returns where the integrand can reach `level` although `u < v`.

    There it is below `(a - 1) v exp(-x^2/2)`, with `v <= exp(-m |x| / z)`.
    """
    tilt = -pairs.other_mean / pairs.noise_multiplier
    square = tilt**2 + 2 * (np.log(pairs.excess) - level)
    reach = tilt + np.sqrt(np.maximum(square, 0))
    end = np.minimum(reach, 0.5 / pairs.noise_multiplier)
    return Windows(-reach, end).only(square > 0)


def _convex_part(pairs: Pairs) -> Array:
    """Returns the ends of the interval where the envelope is convex.

    Shape `[2, n]`, within the interval that can hold peaks. If the envelope is
    concave everywhere, the two ends are equal.
    """
    z, order = pairs.noise_multiplier, 1 + pairs.excess
    # Without v: order * s (1-s) = z^2 for the share s of the component.
    least = np.minimum(z * z / order, 0.25)
    share = 2 * least / (1 + np.sqrt(1 - 4 * least))
    width = np.log1p(-share) - np.log(share)
    middle = -pairs.log_odds()
    ends = z * (middle + np.stack([-width, width])) + 0.5 / z
    ends = np.clip(ends, -1.0, _largest_peak(pairs) + 1)
    if pairs.other_mean:  # v bends the envelope down: a smaller interval.
        center = np.clip(z * middle + 0.5 / z, ends[0], ends[1])
        signs = np.array([[1.0], [-1.0]])
        found = _bisect(
            np.stack([ends[0], center]),
            np.stack([center, ends[1]]),
            lambda x: signs * pairs.envelope_curvature(x) < 0,
        )
        ends = np.stack([found[0, 0], found[1, 1]])
    return np.asarray(ends)


def _peaks(
    pairs: Pairs, convex: Array
) -> tuple[Array, Array, Array, NDArray[np.bool_]]:
    """Returns the peaks, the valley between, and whether there are two.

    A single peak is returned twice.
    """
    signs = np.array([[1.0], [-1.0], [1.0]])
    least = np.full_like(convex[0], -1.0)
    most = np.maximum(convex[1], _largest_peak(pairs))
    found = _bisect(
        np.stack([least, convex[0], convex[1]]),
        np.stack([convex[0], convex[1], most]),
        lambda x: signs * pairs.envelope_slope(x) > 0,
    )
    first, valley, second = found.mean(axis=0)
    rises_before = pairs.envelope_slope(convex[0]) > 0
    rises_after = pairs.envelope_slope(convex[1]) > 0
    two_peaks = ~rises_before & rises_after
    single = np.where(rises_after, second, first)
    return (
        np.where(two_peaks, first, single),
        np.where(two_peaks, valley, single),
        np.where(two_peaks, second, single),
        two_peaks,
    )


def _peak_value(pairs: Pairs, first: Array, second: Array) -> Array:
    """Returns the log of the integrand near its peak, never above it."""
    ones = np.ones_like(first)
    z = pairs.noise_multiplier
    candidates = [first, second, -1.5 * ones, 1.5 * ones, 1 / z, 2 / z]
    if pairs.other_mean:
        candidates += [-1 / z, -2 / z]
    return np.asarray(pairs.log_integrand(np.stack(candidates)).max(axis=0))


def _largest_peak(pairs: Pairs) -> Array:
    """Returns a bound on the place of a peak; all are > -1."""
    pull = 1 + pairs.excess - pairs.other_mean * pairs.excess
    return np.asarray(pull / pairs.noise_multiplier)


def _bisect(
    low: Array, high: Array, goes_right: Callable[[Array], NDArray[np.bool_]]
) -> Array:
    """Returns intervals `[low, high]` around the ends of `goes_right`."""
    widest = max(float(np.max(high - low)), _PRECISION)
    for _ in range(int(np.ceil(np.log2(widest / _PRECISION)))):
        middle = (low + high) / 2
        right = goes_right(middle)
        low = np.where(right, middle, low)
        high = np.where(right, high, middle)
    return np.stack([low, high])
