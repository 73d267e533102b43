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
from scipy import fft, special

from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.loss.loss_distribution import conversion
from keras_dp.errors import TooSlowError

# Log of a bound on the tilted mass beyond each end of the window.
_LOG_OUTSIDE = -36.0
_MOST_POINTS = 1 << 23
# Error of a transform per level, relative to the norm: a few times what is
# proven.
_ERROR_PER_LEVEL = 2e-15
# The range of tilts that is searched, and the precision of the best one. Tilts
# in units of one over the stddev of the sum are for losses that are all next to
# 0.
_LEAST_TILT, _MOST_TILT, _NEAREST = 1e-3, 1e4, 0.05
_LEAST_STDDEVS, _MOST_STDDEVS = 1e-4, 1e3
# The log of a weight that is 0 in float64.
_NOTHING = -800.0
# Rounding of sums and exponentials: once, and for each round.
_ROUNDING, _ROUNDING_EACH = 1e-9, 1e-12


class LossMasses(NamedTuple):
    """Rounds whose losses are alike.

    Attributes:
        first: The first loss, in steps.
        masses: The mass of each loss, one a step; 1 together with `infinite`,
            but for rounding.
        infinite: Mass of an infinite loss.
    """

    first: int
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
        # Weights beyond are 0 in float64.
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
            total * (1 + self.rounding) + error + self.outside
        )
        return min(1.0, found + self.infinite)


def composed(
    parts: Sequence[LossMasses],
    step: float,
    epsilon: float,
    log_delta: float | None = None,
) -> Sum:
    """Returns the sum of losses on a grid, tilted to where it is looked at.

    That is next to `epsilon`, or next to the epsilon of a given `log_delta`.
    The step is in nats.
    """
    # One body: each step takes the tilt and the points of the one before.
    # Most points of some are empty.
    held = [np.flatnonzero(each.masses) for each in parts]
    logs = [
        np.log(each.masses[at]) for each, at in zip(parts, held, strict=True)
    ]
    places = [
        step * (each.first + at) for each, at in zip(parts, held, strict=True)
    ]

    def log_moment(tilt: float) -> float:
        return sum(
            each.rounds * float(special.logsumexp(log + tilt * place))
            for each, log, place in zip(parts, logs, places, strict=True)
        )

    def size(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        least = float(conversion(np.array(tilt)))
        if log_delta is None:
            return log_moment(tilt) - tilt * epsilon + least
        return (log_moment(tilt) - log_delta + least) / tilt

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
    tilt = math.exp(float(found.x))
    whole = log_moment(tilt)
    # Chernoff's bound on the tilted mass beyond each end, for some tilts more.
    more = tilt * np.geomspace(1e-2, 10, 9)
    highest = min(
        (log_moment(tilt + r) - whole - _LOG_OUTSIDE) / r for r in more
    )
    lowest = max(
        (whole - log_moment(tilt - r) + _LOG_OUTSIDE) / r for r in more
    )
    least = sum(each.rounds * each.first for each in parts)
    most = sum(
        each.rounds * (each.first + len(each.masses) - 1) for each in parts
    )
    start = max(least, math.floor(lowest / step))
    stop = min(most, math.ceil(highest / step))
    if stop - start + 1 > _MOST_POINTS:
        raise TooSlowError
    points = fft.next_fast_len(max(stop - start + 1, 2), real=True)
    points = max(points, max(len(each.masses) for each in parts))
    points = fft.next_fast_len(points, real=True)
    spectrum = np.ones(points // 2 + 1, np.complex128)
    relative, shift, rounding = 0.0, 0, _ROUNDING
    level = _ERROR_PER_LEVEL * math.log2(points)
    for each, at, log, place in zip(parts, held, logs, places, strict=True):
        exponents = log + tilt * place
        masses = np.zeros(len(each.masses))
        masses[at] = np.exp(exponents - special.logsumexp(exponents))
        spectrum *= fft.rfft(masses, points) ** each.rounds
        norm = math.sqrt(points) * float(np.linalg.norm(masses))
        relative += each.rounds * level * (norm + 1)
        shift += each.rounds * each.first
        # The masses lack this much of 1. Any of them may be too small by it.
        lost = abs(float(each.masses.sum()) + each.infinite - 1)
        rounding += each.rounds * (_ROUNDING_EACH + 2 * lost)
    circular = fft.irfft(spectrum, points)
    tilted = np.roll(circular, (shift - start) % points)
    if log_delta is not None:
        epsilon = size(float(found.x))
    return Sum(
        tilt,
        epsilon,
        whole,
        step * (start + np.arange(points)),
        np.maximum(tilted, 0.0),
        math.expm1(min(relative, 1.0)) + level,
        math.exp(_LOG_OUTSIDE),
        min(1.0, sum(each.rounds * each.infinite for each in parts) * 1.000001),
        rounding,
    )


def _variance(each: LossMasses) -> float:
    """Returns the variance of a loss, in steps."""
    places = np.arange(len(each.masses))
    mean = np.average(places, weights=each.masses)
    return float(np.average((places - mean) ** 2, weights=each.masses))
