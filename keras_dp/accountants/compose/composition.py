"""Rounds together: their losses, the moments of the sum, and bounds by them.

Bounds by moments: Chernoff's, with the best tilt, and one by the variance.

For Chernoff's bounds see `loss.loss_distribution.conversion`. They are far off
where epsilon is tiny and the losses have a long tail. There the variance `v` of
the likelihood ratio `L` under `Q`, whose mean is 1, bounds more. With
`x = e^epsilon - 1`,

    delta = E_Q[(L - 1 - x)+] <= (sqrt(v + x^2) - x) / 2,

because `y+ = (|y| + y) / 2` and the mean of `|L - 1 - x|` is at most the root
of the mean of its square (Scarf 1958). `v + 1 = E_Q[L^2] = e^K(1)`.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.loss.loss_distribution import (
    LossDistribution,
    Moments,
    conversion,
    log_moments_of_nodes,
    moments_of_loss,
)
from keras_dp.accountants.loss.of_normal_output import OutputLoss
from keras_dp.errors import TooSlowError

# Tilts are powers of the root of 2: their exponents, in halves. The first ones
# that are tried, how many more at a time, and the largest.
_FIRST, _MORE, _MOST = 4, 8, 80
# A bound that is as good as it gets: tilts between others, how often, and what
# is no gain.
_BETWEEN, _MOST_ROUNDS, _NO_GAIN = 8, 6, 1e-10
# Moments are rounded up by this share, a thousand times their error.
_MOMENT_ERROR = 1e-9
# More than the rounding of a sum of squares.
_ROUND_UP = 1e-12


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """Rounds in one adjacency direction each.

    Attributes:
        losses: The loss distribution of one round, for each sampled kind.
        counts: How many rounds there are of each, shape `[losses]`.
        gaussian: `mu^2`, of all Gaussian rounds without sampling together.
    """

    losses: tuple[LossDistribution, ...]
    counts: Array
    gaussian: float = 0.0

    @property
    def largest(self) -> float:
        """The largest sum of losses, in nats; may be infinite."""
        if self.gaussian > 0:
            return math.inf
        return math.fsum(
            count * loss.largest
            for loss, count in zip(
                self.losses, self.counts.tolist(), strict=True
            )
        )


def moments_of_sum(composition: Composition, tilt: float) -> Moments:
    """Returns about `K = log M` and two derivatives at a tilt > 0."""
    gaussian = composition.gaussian
    log_moment = gaussian * tilt * (1 + tilt) / 2
    mean, variance = gaussian * (tilt + 0.5), gaussian
    for loss, count in zip(
        composition.losses, composition.counts.tolist(), strict=True
    ):
        found = moments_of_loss(loss, tilt)
        log_moment += count * found.log_moment
        mean += count * found.mean
        variance += count * found.variance
    return Moments(log_moment, mean, variance)


def log_moments(composition: Composition, tilts: Array) -> tuple[Array, Array]:
    """Returns `K`, and bounds on its errors, rounding of `K` itself apart."""
    total = composition.gaussian * tilts * (1 + tilts) / 2
    errors = np.zeros_like(tilts)
    for loss, count in zip(
        composition.losses, composition.counts.tolist(), strict=True
    ):
        found, error = _log_moments(loss, tilts.tobytes())
        total = total + count * found
        errors = errors + count * error
    return total, errors


@functools.lru_cache(maxsize=1 << 12)
def _log_moments(loss: LossDistribution, tilts: bytes) -> tuple[Array, float]:
    """Returns them of one round, which other compositions have too."""
    at = np.frombuffer(tilts)
    nodes = loss.nodes(float(at.max()))
    error = math.exp(min(nodes.log_error, EXPONENT))
    return log_moments_of_nodes(nodes, at[:, None]), math.log1p(error)


def square_without_sampling(composition: Composition) -> float:
    """Returns `mu^2` of Gaussian rounds that dominate all, rounded up.

    `inf` where none are known. Given how many of the changed records a round
    draws, it is a Gaussian release that moves by `turn` at most. By joint
    convexity its delta is at most that of a release that moves by `turn`.
    """
    squares = (
        count * loss.turn**2 if isinstance(loss, OutputLoss) else math.inf
        for loss, count in zip(
            composition.losses, composition.counts.tolist(), strict=True
        )
    )
    total = composition.gaussian + math.fsum(squares)
    return total * (1 + _ROUND_UP)


class BestTilt(NamedTuple):
    """The tilt of the least bound, and the bound."""

    tilt: float
    log_delta: float


class MomentBounds:
    """Bounds on delta of a composition, at tilts that all epsilons share."""

    def __init__(self, composition: Composition) -> None:
        self._composition = composition
        self._tilts, self._known = np.empty(0), np.empty(0)
        self._start = self._stop = 0
        self._is_last = self._is_out_of_reach = False

    def log_delta(self, epsilon: float) -> BestTilt:
        """Returns the best tilt for `epsilon`, and its bound on log delta.

        Raises `TooSlowError` if a moment has no quadrature, as all functions
        of this file do.
        """
        if self._is_out_of_reach:
            raise TooSlowError
        if not self._tilts.size:
            self._begin()
        while True:
            found = self._known - self._tilts * epsilon
            best = int(np.argmin(found))
            if best == 0 and self._start > -_MOST:
                self._start -= _MORE
                self._extend(self._start, self._start + _MORE)
            elif best < self._tilts.size - 1 or self._is_last:
                break
            else:
                self._stop += _MORE
                self._is_last = not self._extend(self._stop - _MORE, self._stop)
        tilt, log_delta = float(self._tilts[best]), float(found[best])
        scale = abs(log_delta) + 2 * tilt * epsilon
        scale -= float(conversion(np.array(tilt)))
        upper = min(0.0, log_delta + _MOMENT_ERROR * scale)
        return BestTilt(tilt, min(upper, self._by_variance(epsilon)))

    def refine(self, epsilon: float) -> None:
        """Computes moments next to the best tilt, where it matters."""
        least = math.inf
        for _ in range(_MOST_ROUNDS):
            tilt, log_delta = self.log_delta(epsilon)
            if not log_delta < least - _NO_GAIN * abs(log_delta):
                break
            least = log_delta
            best = int(np.searchsorted(self._tilts, tilt))
            ends = self._tilts[max(best - 1, 0) : best + 2]
            self._add(np.geomspace(ends[0], ends[-1], _BETWEEN + 2)[1:-1])

    def stddev(self) -> float:
        """Returns that of the likelihood ratio, which small losses have too."""
        return math.sqrt(variance(self._composition))

    def _begin(self) -> None:
        """Computes the first moments, at smaller tilts if 1 is too large."""
        self._start, self._stop = -_FIRST, 2 * _FIRST + 1
        while not self._extend(self._start, self._stop):
            self._start, self._stop = self._start - 2 * _FIRST, self._start
            if self._start < -_MOST:
                self._is_out_of_reach = True
                raise TooSlowError

    def _extend(self, start: int, stop: int) -> bool:
        """Computes moments at more tilts; returns whether there are any."""
        tilts = 2.0 ** (np.arange(start, min(stop, _MOST + 1)) / 2)
        while tilts.size:
            try:
                self._add(tilts)
            except TooSlowError:  # Not at such a tilt.
                tilts = tilts[: tilts.size // 2]
            else:
                return True
        return False

    def _add(self, tilts: Array) -> None:
        logs, errors = log_moments(self._composition, tilts)
        logs = np.nan_to_num(logs + errors, nan=math.inf, posinf=math.inf)
        at = np.searchsorted(self._tilts, tilts)
        self._tilts = np.insert(self._tilts, at, tilts)
        self._known = np.insert(self._known, at, logs + conversion(tilts))

    def _by_variance(self, epsilon: float) -> float:
        try:
            return variance_log_delta(self._composition, epsilon)
        except TooSlowError:
            return 0.0


def variance_log_delta(composition: Composition, epsilon: float) -> float:
    """Returns the bound on log delta by the variance."""
    most = variance(composition)
    x = math.expm1(min(epsilon, EXPONENT))
    if not 0 < most < math.inf:
        return 0.0
    # In this form nothing cancels, and no square overflows.
    bound = most / (2 * (math.hypot(math.sqrt(most), x) + x))
    return min(0.0, math.log(bound) + _MOMENT_ERROR) if bound else 0.0


@functools.lru_cache(maxsize=64)
def variance(composition: Composition) -> float:
    """Returns the variance of the likelihood ratio, rounded up."""
    logs, errors = log_moments(composition, np.array([1.0]))
    most = float(logs[0] + errors[0])
    return (
        math.expm1(most) * (1 + _MOMENT_ERROR) if most < EXPONENT else math.inf
    )
