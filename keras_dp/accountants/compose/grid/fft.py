"""Sums of losses on a grid, and the delta that belongs to them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.compose.grid.pessimistic import GridPairs

_EPSILON = float(np.finfo(np.float64).eps)
# Rounding of a transform, in units of float64's and of the log of its size
# (Higham 2002, Theorem 24.2, has 3.4 for its norm), of a product, per round.
_TRANSFORM, _PRODUCT = 4.0, 4.0
# Relative, of a mass, and of a sum of millions of weights.
_MASS_ERROR, _SUM_ERROR = 1e-13, 1e-12
# Blocks for Chernoff's bounds, and their exponents in units of the spread.
_BLOCKS = 1 << 10
_EXPONENTS = 2.0 ** np.linspace(-8, 10, 55)
# Terms beyond e^-60 of the first are left out.
_REACH = 60.0
# Transforms that are smaller than e^-100 of the largest when composed are 0.
_LOWEST, _MOST_CELLS = -100.0, 100
# A grid is too coarse where the weights, 1 in truth, have a larger sum.
_LARGEST, _LARGEST_SIZE = 1e9, 1 << 23


class Window(NamedTuple):
    """Composed weights in a window of the grid.

    Attributes:
        tilt: `c`, of the weights `e^(c l) P(l)`.
        log_scale: Log of what the weights are to be multiplied with.
        low: Loss of the first point.
        step: Between the points.
        weights: At the points.
        total: Bound on the sum of the weights.
        gains: `e^(-c x) (1 - e^-x)` at `step`, `2 step` and so on, until it
            is next to nothing.
        falls: `e^(-c x) e^-x` at the same.
        noise: Bound on the error of a sum of weights times gains.
        astray: Bound on the weight that may be in the wrong place.
        infinite: Probability of an infinite loss.
        log_error: Bound on the relative error of `log_scale`'s exponential.
        sign: 1 for an upper bound, -1 for a lower one.
    """

    tilt: float
    log_scale: float
    low: float
    step: float
    weights: Array
    total: float
    gains: Array
    falls: Array
    noise: float
    astray: float
    infinite: float
    log_error: float
    sign: int

    def line(self, index: int) -> tuple[float, float]:
        """Returns `a, b`: delta is `e^(scale - c low_k) (a - b expm1(d))`.

        That is where `epsilon = low_k + d` is between the points `index`,
        `index + 1`, and `low_k` is the loss at the first of them.
        """
        start = max(index + 1, 0)
        kept = self.weights[start : start + self.gains.size]
        gains, losses = self.gains[: kept.size], self.falls[: kept.size]
        if index < -1:
            gains, losses = _gains(self.tilt, self.step, kept.size, -1 - index)
        value, flat = float(gains @ kept), float(losses @ kept)
        error = self.astray * math.exp(log_peak(self.tilt)) + self.noise
        error += self.total * math.exp(-_REACH)
        return value + self.sign * error, flat

    def log_delta(self, epsilon: float) -> float:
        """Returns the bound on log delta."""
        index = math.floor((epsilon - self.low) / self.step)
        value, slope = self.line(index)
        value -= slope * math.expm1(epsilon - self.low - index * self.step)
        log_scale = self._scale(index)
        if self.sign < 0:
            return log_scale + math.log(value) if value > 0 else -math.inf
        logs = log_scale + math.log(max(value, 1e-300))
        infinite = math.log(max(self.infinite, 1e-300))
        return min(0.0, float(np.logaddexp(logs, infinite)))

    def epsilon(self, log_delta: float, guess: float) -> float:
        """Returns where the bound is `log_delta`, looked for from `guess`.

        Far from where the weights are, a lower bound is of no use.
        """
        if self.sign > 0 and self.log_delta(0.0) <= log_delta:
            return 0.0
        log_left = log_delta
        if self.infinite > 0:
            share = math.exp(min(math.log(self.infinite) - log_delta, 0.0))
            if share == 1:
                return math.inf
            log_left += math.log1p(-share)
        low = first = math.floor(-self.low / self.step)
        high = end = max(self.weights.size, low + 1)
        index = round((guess - self.low) / self.step)
        best = 0.0
        for _ in range(_MOST_CELLS):
            index = min(max(index, low), high - 1)
            value, slope = self.line(index)
            wanted = math.exp(min(log_left - self._scale(index), 600.0))
            if value >= wanted:
                low = index
                found = math.log1p((value - wanted) / max(slope, 1e-300))
                best = self.low + index * self.step + min(found, self.step)
                if found <= self.step:
                    return max(0.0, best)
            else:
                high = index
            if (high - low <= 1 and index == low) or high <= first:
                break
            index += _newton(value, wanted, slope, self.step)
            if not low < index < high:
                index = (low + high) // 2
        if self.sign > 0:
            return self.low + high * self.step if high < end else math.inf
        return max(0.0, best)

    def _scale(self, index: int) -> float:
        loss = self.low + index * self.step
        slack = self.sign * self.log_error
        return self.log_scale - self.tilt * loss + slack


def _newton(value: float, wanted: float, slope: float, step: float) -> int:
    """Returns how many steps it is to the root, if log delta is straight."""
    if min(value, slope, wanted) <= 0:
        return 0
    move = math.log(value / wanted) * value / slope
    return math.floor(min(max(move / step, -1e9), 1e9))


def log_peak(tilt: float) -> float:
    """Returns the log of the largest `e^(-c x) (1 - e^-x)`."""
    return -tilt * math.log1p(1 / tilt) - math.log1p(tilt)


def windows(
    tilt: float,
    pairs: Sequence[GridPairs],
    counts: Sequence[int],
    step: float,
    log_astray: float,
) -> tuple[Window, Window]:
    """Returns the lower and the upper bound from the pairs on a grid.

    Args:
        tilt: Of the weights of the pairs.
        pairs: Of each law.
        counts: How many rounds there are of each.
        step: Of the grid.
        log_astray: Log of the weight that may be outside of the window.

    Raises:
        OverflowError: The grid is too coarse, or too fine.
    """
    common = tilt, pairs, counts, step, log_astray
    return _window(*common, -1), _window(*common, 1)


def _gains(
    tilt: float, step: float, most: int, skipped: int = 0
) -> tuple[Array, Array]:
    """Returns gains and falls, at most so many."""
    reach = math.ceil(_REACH / (tilt * step))
    x = step * np.arange(1 + skipped, 1 + min(most, max(reach, 1)) + skipped)
    falls = np.exp(-tilt * x)
    gains = -falls * np.expm1(-x)
    return gains, falls - gains


def _window(
    tilt: float,
    pairs: Sequence[GridPairs],
    counts: Sequence[int],
    step: float,
    log_astray: float,
    sign: int,
) -> Window:
    weights = [each.above if sign > 0 else each.below for each in pairs]
    start, stop = _reach(weights, counts, log_astray)
    lengths = [each.size - 1 for each in weights]
    length = 1 + sum(c * n for c, n in zip(counts, lengths, strict=True))
    start, stop = max(start, 0), min(stop, length)
    astray = 2 * math.exp(log_astray) * ((start, stop) != (0, length))
    size = max(stop - start, *(each.size for each in weights), 2)
    if size > _LARGEST_SIZE:
        raise OverflowError
    size = fft.next_fast_len(size, real=True)
    total, norms, origin, composed = 1.0, 0.0, 0, _ONE
    low = log_scale = infinite = log_error = 0.0
    for pair, each, count in zip(pairs, weights, counts, strict=True):
        place = 0 if pair.anchor is None else pair.anchor - pair.first
        part, norm = _transformed(each, place, pair.anchor is not None, size)
        composed = composed.times(part.power(count))
        mass = float(each.sum())
        total *= math.exp(count * math.log(mass))
        norms += count * norm / mass
        origin += count * place
        low += count * (pair.offset + pair.first * step)
        log_scale += count * pair.log_moment
        infinite += count * pair.infinite
        largest = abs(pair.offset) + (abs(pair.first) + each.size) * step
        exponent = abs(pair.log_moment) + (1 + tilt) * largest
        log_error += count * (8 + 2 * exponent)
    if total > _LARGEST:
        raise OverflowError
    found = fft.irfft(composed.rest, size)
    found = np.roll(found, (origin - start) % size)[: stop - start]
    gains, falls = _gains(tilt, step, found.size)
    own = math.sqrt(float(found @ found))
    transform, product = _TRANSFORM * math.log2(size), _PRODUCT * sum(counts)
    is_apart = any(pair.anchor is not None for pair in pairs)
    noise = (transform + product * is_apart) * total * norms
    noise += (transform + product) * own
    if start <= origin < stop:
        found[origin - start] += composed.atom
    return Window(
        tilt,
        log_scale,
        low + start * step,
        step,
        found,
        max(total, 1.0),
        gains,
        falls,
        _EPSILON * noise * math.sqrt(float(gains @ gains)),
        astray * max(total, 1.0),
        infinite if sign > 0 else 0.0,
        _EPSILON * log_error + _MASS_ERROR * sum(counts) + _SUM_ERROR,
        sign,
    )


def _transformed(
    weights: Array, place: int, is_apart: bool, size: int
) -> "tuple[_Shifted, float]":
    """Returns the transform from `place` on, and the norm of what varies."""
    turned = np.zeros(size)
    turned[: weights.size - place] = weights[place:]
    turned[size - place :] = weights[:place]
    atom = float(turned[0]) if is_apart else 0.0
    turned[0] -= atom
    norm = math.sqrt(float(turned @ turned))
    return _Shifted(atom, fft.rfft(turned)), norm


def _reach(
    weights: Sequence[Array], counts: Sequence[int], log_most: float
) -> tuple[int, int]:
    """Returns the window outside of which there is little on either side.

    Chernoff's bound, of laws on blocks of points: weight between the ends of
    a block goes to the ends, with its mean, and exponentials are convex.
    """
    mean = 0.0
    blocks = []
    for each, count in zip(weights, counts, strict=True):
        width = -(-each.size // _BLOCKS)
        padded = np.zeros(width * (-(-each.size // width)))
        padded[: each.size] = each
        cells = padded.reshape(-1, width)
        mass, moment = cells.sum(axis=1), cells @ np.arange(width) / width
        ends = np.append(mass - moment, 0.0)
        ends[1:] += moment
        places = width * np.arange(ends.size, dtype=np.float64)
        center = float(places @ ends / ends.sum())
        mean += count * center
        held = ends > 0
        blocks.append((places[held] - center, ends[held]))
    variance = sum(
        count * float(ends @ places**2 / ends.sum())
        for count, (places, ends) in zip(counts, blocks, strict=True)
    )
    reach = []
    for side in (-1, 1):
        s = side * _EXPONENTS / math.sqrt(max(variance, 1e-300))
        logs = np.zeros_like(s)
        for count, (places, ends) in zip(counts, blocks, strict=True):
            exponents = np.multiply.outer(s, places)
            top = exponents.max(axis=1)
            total = np.exp(exponents - top[:, None]) @ ends
            logs += count * (np.log(total) + top)
        reach.append(float(np.min((logs - log_most) / np.abs(s))))
    return math.floor(mean - reach[0]), math.ceil(mean + reach[1]) + 1


class _Shifted(NamedTuple):
    """`atom + rest`, apart so that `rest` keeps its digits."""

    atom: float
    rest: NDArray[np.complex128]

    def times(self, other: "_Shifted") -> "_Shifted":
        """Returns the product; values beyond the shorter one are 0."""
        least = min(self.rest.size, other.rest.size)
        length = self.rest.size if other.atom else least
        length = max(length, other.rest.size if self.atom else least)
        rest = np.zeros(length, dtype=np.complex128)
        rest[:least] = self.rest[:least] * other.rest[:least]
        if self.atom:
            rest[: other.rest.size] += self.atom * other.rest
        if other.atom:
            rest[: self.rest.size] += other.atom * self.rest
        return _Shifted(self.atom * other.atom, rest)

    def power(self, count: int) -> "_Shifted":
        if not self.atom:
            return _Shifted(0.0, _power(self.rest, count))
        found, square = None, self
        while True:
            if count & 1:
                found = square if found is None else found.times(square)
            count >>= 1
            if not count:
                return found or square
            square = square.times(square)


def _power(
    values: NDArray[np.complex128], count: int
) -> NDArray[np.complex128]:
    """Returns `values ** count` up to where it is no more than rounding."""
    squares = values.real**2 + values.imag**2
    is_left = squares > squares[0] * math.exp(2 * _LOWEST / count)
    values = values[: values.size - int(np.argmax(is_left[::-1]))]
    values = np.where(is_left[: values.size], values, 0.0)
    found = None
    while True:
        if count & 1:
            found = values if found is None else found * values
        count >>= 1
        if not count:
            return values if found is None else found
        values = values * values


_ONE = _Shifted(1.0, np.zeros(1, dtype=np.complex128))
