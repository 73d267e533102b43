"""Composes losses on a grid: one Fourier transform under a tilt.

Losses are weighted with `e^(s l - K(s))`, where `e^K` is the moment generating
function of their sum. Then the sum's mass lies around the epsilon in question,
and errors of the transform are relative to what is looked for.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import fft, special

from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.loss.loss_distribution import conversion
from keras_dp.errors import TooSlowError

# Log of a bound on the tilted mass beyond each end of the window.
_LOG_OUTSIDE = -50.0
_MOST_POINTS = 1 << 22
# Error of a transform per level, relative to the norm: a few times what is
# proven. Many processors have more digits than float64, which matter where a
# few large losses leave next to no mass near the epsilon in question.
_ERROR_PER_LEVEL = 9 * max(float(np.finfo(np.longdouble).eps), 2.0**-63)
# The range of tilts that is searched, and the precision of the best one. Tilts
# in units of one over the stddev of the sum are for losses that are all next to
# 0.
_LEAST_TILT, _MOST_TILT, _NEAREST = 1e-3, 1e4, 0.05
_LEAST_STDDEVS, _MOST_STDDEVS = 1e-4, 1e3
# The log of weights that are left out, or counted as this.
_NOTHING = -60.0
# A smaller transform counts as one of this size.
_LEAST_SIZE = 1e-300
# Rounding of sums and exponentials: once, and for each round.
_ROUNDING, _ROUNDING_EACH = 1e-9, 1e-12


class LossMasses(NamedTuple):
    """Rounds whose losses are alike.

    Attributes:
        first: The first loss, in steps; not always whole ones.
        masses: The mass of each loss, one a step; 1 together with `infinite`,
            but for rounding.
        infinite: Mass of an infinite loss.
    """

    first: float
    masses: Array
    infinite: float
    rounds: int


@dataclasses.dataclass(frozen=True, slots=True)
class Sum:
    """The sum of the losses of all rounds, under a tilt.

    Attributes:
        tilt: `s` > 0.
        epsilon: Where it is looked at.
        log_moment: `K(s)`.
        losses: Shape `[n]`, rising.
        tilted: Their masses, which are 1 together, but for errors.
        error: Bound on the norm of the errors of the tilted masses.
        outside: Bound on the tilted mass beyond each end.
        infinite: Bound on the mass of an infinite loss.
        rounding: Bound on the relative error of sums.
    """

    tilt: float
    epsilon: float
    log_moment: float
    losses: Array
    tilted: Array
    error: float
    outside: float
    infinite: float
    rounding: float

    def delta(self, epsilon: float, *, is_upper: bool) -> float:
        """Returns an upper or a lower bound on `E[(1 - e^(epsilon - l))+]`."""
        ends = epsilon, epsilon - _NOTHING / self.tilt
        start, stop = np.searchsorted(self.losses, ends, "right")
        losses, tilted = self.losses[start:stop], self.tilted[start:stop]
        logs = -self.tilt * (losses - epsilon)
        weights = np.exp(logs) * -np.expm1(epsilon - losses)
        log_scale = self.log_moment - self.tilt * epsilon
        # The masses are off by a vector whose norm is bounded. The transform
        # adds mass beyond one end of the window at the other end.
        error = self.error * float(np.linalg.norm(weights))
        error += 2 * self.outside * float(weights.max(initial=0.0))
        total = float(tilted @ weights)
        if not is_upper:
            found = math.exp(min(log_scale, EXPONENT)) * (
                total * (1 - self.rounding) - error
            )
            return max(0.0, found)
        found = math.exp(min(log_scale, EXPONENT)) * (
            total * (1 + self.rounding)
            + error
            + self.outside
            + math.exp(_NOTHING)
        )
        return min(1.0, found + self.infinite)


def best_tilt(
    parts: Sequence[LossMasses],
    step: float,
    epsilon: float,
    log_delta: float | None = None,
) -> tuple[float, float]:
    """Returns the tilt for an epsilon, or for that of a given `log_delta`.

    And the epsilon. The step is in nats.
    """
    spread = [_tilts(each, step) for each in parts]

    def size(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        least = float(conversion(np.array(tilt)))
        whole = math.fsum(each.log_moment(tilt) for each in spread)
        if log_delta is None:
            return whole - tilt * epsilon + least
        return (whole - log_delta + least) / tilt

    variance = math.fsum(each.rounds * _variance(each) for each in parts)
    per_stddev = 1 / (step * math.sqrt(variance)) if variance else 0.0
    # The exponent of Chernoff's bound has one minimum.
    found = scipy.optimize.minimize_scalar(
        size,
        bounds=(
            math.log(max(_LEAST_TILT, _LEAST_STDDEVS * per_stddev)),
            math.log(max(_MOST_TILT, _MOST_STDDEVS * per_stddev)),
        ),
        method="bounded",
        options={"xatol": _NEAREST},
    )
    best = float(found.x)
    return math.exp(best), epsilon if log_delta is None else size(best)


def composed(
    parts: Sequence[LossMasses], step: float, tilt: float, epsilon: float
) -> Sum:
    """Returns the sum of losses on a grid, tilted to where it is looked at."""
    spread = [_tilts(each, step) for each in parts]

    def log_moment(tilt: float) -> float:
        return math.fsum(each.log_moment(tilt) for each in spread)

    whole = log_moment(tilt)
    # Chernoff's bound on the tilted mass beyond each end, for some tilts more.
    more = tilt * np.geomspace(1e-2, 10, 6)
    highest = min(
        (log_moment(tilt + r) - whole - _LOG_OUTSIDE) / r for r in more
    )
    lowest = max(
        (whole - log_moment(tilt - r) + _LOG_OUTSIDE) / r for r in more
    )
    least = math.fsum(each.rounds * each.first for each in parts)
    most = sum(each.rounds * (len(each.masses) - 1) for each in parts)
    start = max(0, math.floor(lowest / step - least))
    stop = min(most, math.ceil(highest / step - least))
    if stop - start + 1 > _MOST_POINTS:
        raise TooSlowError
    points = max(stop - start + 1, *(len(each.masses) for each in parts), 2)
    points = fft.next_fast_len(points, real=True)
    spectrum = np.ones(points // 2 + 1, np.clongdouble)
    logs, off = np.zeros(spectrum.size), np.zeros(spectrum.size)
    rounding = _ROUNDING
    level = _ERROR_PER_LEVEL * math.log2(points)
    for each, tilts in zip(parts, spread, strict=True):
        exponents = tilts.logs + tilt * tilts.places
        masses = np.zeros(len(each.masses), np.longdouble)
        masses[tilts.held] = np.exp(exponents - special.logsumexp(exponents))
        one = fft.rfft(masses, points)
        spectrum *= _power(one, each.rounds)
        error = level * math.sqrt(points) * float(np.linalg.norm(masses))
        # |a^n - b^n| <= (|b| + e)^n - |b|^n, where |a - b| <= e.
        sizes = np.maximum(np.abs(one).astype(np.float64), _LEAST_SIZE)
        logs += each.rounds * np.log(sizes)
        off += each.rounds * np.log1p(error / sizes + level)
        # The masses lack this much of 1. Any of them may be too small by it.
        lost = max(1 - float(each.masses.sum()) - each.infinite, 0.0)
        rounding += each.rounds * (_ROUNDING_EACH + 2 * lost)
    circular = fft.irfft(spectrum, points).astype(np.float64)
    tilted = np.roll(circular, -start % points)
    # By Parseval's theorem, of both halves of the spectrum. The way back has an
    # error that is relative to the norm of the sum.
    sizes = np.exp(logs)
    near = sizes * np.expm1(np.minimum(off, 1.0))
    off = np.where(off < 1, near, np.exp(np.minimum(logs + off, EXPONENT)))
    error = float(np.linalg.norm(off)) + level * float(np.linalg.norm(sizes))
    error *= math.sqrt(2 / points)
    return Sum(
        tilt,
        epsilon,
        whole,
        step * (least + start + np.arange(points)),
        np.maximum(tilted, 0.0),
        error,
        math.exp(_LOG_OUTSIDE),
        min(1.0, sum(each.rounds * each.infinite for each in parts) * 1.000001),
        rounding,
    )


def _power(
    base: NDArray[np.clongdouble], exponent: int
) -> NDArray[np.clongdouble]:
    """Returns a power: by squares, which are sooner made than logarithms."""
    found = np.ones_like(base)
    for digit in f"{exponent:b}":
        found *= found
        if digit == "1":
            found *= base
    return found


class _Tilts(NamedTuple):
    """The losses of some rounds that have mass: most points have none."""

    rounds: int
    held: NDArray[np.int64]
    logs: Array
    places: Array

    def log_moment(self, tilt: float) -> float:
        whole = special.logsumexp(self.logs + tilt * self.places)
        return self.rounds * float(whole)


def _tilts(each: LossMasses, step: float) -> _Tilts:
    held = np.flatnonzero(each.masses)
    logs = np.log(each.masses[held])
    places = np.asarray(step * (each.first + held), np.float64)
    return _Tilts(each.rounds, held, logs, places)


def _variance(each: LossMasses) -> float:
    """Returns the variance of a loss, in steps."""
    places = np.arange(len(each.masses))
    mean = np.average(places, weights=each.masses)
    return float(np.average((places - mean) ** 2, weights=each.masses))
