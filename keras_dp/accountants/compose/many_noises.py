"""Many rounds that differ in their noise, at the cost of a few.

A loss that is a function of `w = log N(1, z^2) / N(0, z^2)` alone has moments
that are a heat flow in `v = 1 / z^2`: with the normal density of mean `-v / 2`
and variance `v` and some `G_s`,

    M(s; v) = int (2 pi v)^(-1/2) e^(-(w + v/2)^2 / (2 v)) G_s(w) dw.

It is analytic for `Re v > 0`. With `V = |v|^2 / Re v` the size of the kernel is
`sqrt(V / |v|) e^((V - Re v) / 8)` times the kernel of `V`, so that `|M(s; v)|`
is at most that times `M(Re s; V)`, for every frequency `Im s`.

If a function is analytic in an ellipse around an interval, with sum of
half-axes `r` (in units of half its length), and at most `B` there, a polynomial
through `n` Chebyshev points is off by at most `4 B r^(1-n) / (r - 1)` on the
interval, and by `4 B (x/r)^n / (1 - x/r)` on the ellipse of `x < r`.

Such a polynomial stands for the `M` of all rounds, and the sum of their
logarithms has one term for each of them. Where the polynomial has changed so
little that `log M` is analytic in a smaller ellipse, the logarithm has a
polynomial through the same points, and the sum a term for each point.

Source: Trefethen (2013), "Approximation Theory and Approximation Practice",
Theorems 8.1 and 8.2.
"""

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from typing_extensions import override

from keras_dp.accountants.arrays import EPSILON, EXPONENT, Array, Points, log1p
from keras_dp.accountants.loss.decay import Repeated
from keras_dp.accountants.loss.log_moments import log_moments
from keras_dp.accountants.loss.loss_distribution import LossDistribution
from keras_dp.accountants.loss.mixture import MixtureLoss
from keras_dp.errors import TooSlowError

# Fewer losses are taken one by one, and never more than that.
_FEW, _MOST = 12, 400
# Sums of half-axes that are tried, and numbers of intervals.
_AXES = (1.6, 2.0, 2.6, 3.5, 5.0, 8.0, 14.0, 30.0)
_PIECES = (1, 2, 3, 5, 8, 12, 20, 40)
_MOST_POINTS = 120
# Moments are bounded by those of the next one of these `V`.
_RATIO = 1.1
# Angles on an ellipse; between them `V` is larger by less than the factor.
_ANGLES = np.exp(1j * np.linspace(0, np.pi, 65))
_BETWEEN = 1.01
# Smaller ellipses, as powers of the sum of the half-axes; how far their
# functions may be from a constant, relative to it.
_POWERS = np.array([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
_MOST_CHANGE = 0.9
# An interpolated value has at most so many times the error of its points.
_LEBESGUE = 5.0
_ROUNDING = 32 * EPSILON
_LEAST = 1e-300
# Values at once, and at most of them.
_AT_ONCE, _MOST_VALUES = 1 << 18, 1 << 23
# Noises that share a decay are within one of so many bins.
_BINS = 10


class Interval(NamedTuple):
    """Rounds, and the losses that stand for them.

    Attributes:
        losses: One for each kind of round, or for each Chebyshev point.
        counts: How many there are of each, shape `[rounds]`.
        weights: Weight of each loss in a sum over the rounds.
        places: Where `v` is in the interval, from -1 to 1, shape `[rounds]`;
            empty if each kind of round has its own loss.
        log_bound: Log of `B`.
        axes: `r`.
    """

    losses: Sequence[LossDistribution]
    counts: Array
    weights: Array
    places: Array = np.empty(0)
    log_bound: float = 0.0
    axes: float = 0.0

    def total(
        self, logs: Points, errors: Array, tolerance: float
    ) -> tuple[Points, Array]:
        """Returns the sum of `log M` over the rounds.

        Args:
            logs: `log M` of the losses, shape `[losses, n]`.
            errors: Bounds on the relative errors of `M`, of the same shape.
            tolerance: An error that is good enough.

        Returns:
            The sum, but for whole turns, and `log(1 + e)`, both of shape
            `[n]`, where `e` bounds the relative error of its exponential.
        """
        if not self.places.size:
            return self.counts @ logs, self.counts @ np.log1p(errors)
        # A polynomial may be no moment outside of its interval, or overflow.
        with np.errstate(all="ignore"):
            return self._interpolated(np.expm1(logs), errors, tolerance)

    def _interpolated(
        self, values: Points, errors: Array, tolerance: float
    ) -> tuple[Points, Array]:
        """Returns the same from `M - 1` at the points."""
        errors = errors * np.abs(1 + values) + _ROUNDING * np.abs(values)
        noise = np.asarray(_LEBESGUE * errors.max(axis=0))
        found = _coefficients(len(self.losses)) @ values
        middle = np.maximum(np.abs(1 + found[0]), _LEAST)
        ratios = (values - found[0]) / (1 + found[0])
        count = float(self.counts.sum())
        sums = self.weights @ log1p(ratios) + count * log1p(found[0])
        shares = errors / np.maximum(np.abs(1 + values), _LEAST)
        rounding = np.abs(self.weights) @ shares
        rounding += count * _ROUNDING * np.abs(found[0]) / middle
        error = count * self._error_of_logarithms(found, noise, middle)
        off = error + rounding
        bad = np.flatnonzero(~(error <= np.maximum(tolerance, rounding)))
        if bad.size * self.counts.size > _MOST_VALUES:
            raise TooSlowError
        if bad.size:
            noise = noise[bad] + math.exp(self._log_error)
            sums[bad], off[bad] = self._one_by_one(found[:, bad], noise)
        is_known = np.isfinite(sums) & np.isfinite(off)
        return np.where(is_known, sums, 0.0), np.where(is_known, off, np.inf)

    def _one_by_one(self, found: Points, noise: Array) -> tuple[Points, Array]:
        """Returns the sum and its errors, with a term for each kind of round.

        Args:
            found: Coefficients of `M - 1`, shape `[points, n]`.
            noise: Errors of interpolated values, shape `[n]`.
        """
        sums, off = np.zeros_like(found[0]), np.zeros_like(noise)
        step = max(1, _AT_ONCE // noise.size)
        for start in range(0, self.counts.size, step):
            part = slice(start, start + step)
            basis = chebyshev.chebvander(self.places[part], len(found) - 1)
            each = basis @ found
            share = noise / np.maximum(np.abs(1 + each), _LEAST)
            sums += self.counts[part] @ log1p(each)
            off += self.counts[part] @ np.log1p(share)
        return sums, off

    @property
    def _log_error(self) -> float:
        """The log of a bound on the error of an interpolated `M`."""
        return (
            math.log(4 / (self.axes - 1))
            + self.log_bound
            - (len(self.losses) - 1) * math.log(self.axes)
        )

    def _error_of_logarithms(
        self, found: Points, noise: Array, middle: Array
    ) -> Array:
        """Returns the error of an interpolated `log M`, or `inf`.

        Args:
            found: Coefficients of `M - 1`, shape `[points, n]`.
            noise: Errors of interpolated values, shape `[n]`.
            middle: Size of `M` in the middle, about; shape `[n]`.
        """
        size = len(found)
        axes = self.axes**_POWERS
        grown = axes[:, None] ** np.arange(1.0, size)
        apart = size * (1 - _POWERS) * math.log(self.axes)
        apart = np.log(4 / (1 - axes / self.axes)) + self.log_bound - apart
        change = grown @ np.abs(found[1:]) + grown.sum(axis=1)[:, None] * noise
        change += np.exp(np.minimum(apart, EXPONENT))[:, None]
        change /= np.maximum(middle - noise, _LEAST)
        # log M is within this of its value in the middle.
        reach = -np.log1p(-np.minimum(change, _MOST_CHANGE))
        reach = np.where(change < _MOST_CHANGE, reach, np.inf)
        shares = 4 * axes ** (1.0 - size) / (axes - 1)
        return np.asarray((shares[:, None] * reach).min(axis=0))


@functools.lru_cache(maxsize=256)
def _coefficients(size: int) -> Array:
    """Returns the matrix from values at Chebyshev points to coefficients."""
    found = chebyshev.chebvander(_points(size), size - 1).T * (2 / size)
    found[0] /= 2
    return np.asarray(found)


def _sums_of_basis(places: Array, counts: Array, size: int) -> Array:
    """Returns the sums of Chebyshev polynomials at places, shape `[size]`."""
    total = np.zeros(size)
    step = max(1, _AT_ONCE // size)
    for start in range(0, places.size, step):
        part = slice(start, start + step)
        total += counts[part] @ chebyshev.chebvander(places[part], size - 1)
    return total


def _points(size: int) -> Array:
    return np.asarray(-np.cos(np.pi * (np.arange(size) + 0.5) / size))


class Kind(NamedTuple):
    """The parameters that the losses of a family share.

    Attributes:
        probabilities: See `MixtureLoss`, as the other one.
        is_added: Whether a record is added.
    """

    probabilities: tuple[float, ...]
    is_added: bool

    def loss(self, variance: float) -> MixtureLoss:
        """Returns the loss of a noise of `v`."""
        return MixtureLoss(variance**-0.5, self.probabilities, self.is_added)


class _Noises(Sequence[LossDistribution]):
    """The losses of one kind: made when asked for, as there may be many."""

    def __init__(self, kind: Kind, noise_multipliers: Array) -> None:
        self._kind, self._noise_multipliers = kind, noise_multipliers

    @override
    def __len__(self) -> int:
        return self._noise_multipliers.size

    @override
    def __getitem__(self, index: Any) -> Any:
        z = float(self._noise_multipliers[index])
        return MixtureLoss(z, self._kind.probabilities, self._kind.is_added)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Losses that differ in their noise alone, or that have nothing in common.

    Attributes:
        losses: One for each kind of round, in a family by rising `v`.
        counts: How many rounds there are of each, shape `[losses]`.
        variances: Their `v`, of the same shape; empty if they are none.
        kind: Their common parameters; none if they are no family.
        found: Intervals for some tilts.
    """

    losses: Sequence[LossDistribution]
    counts: Array
    variances: Array
    kind: Kind | None
    found: dict[tuple[float, float], list[Interval]] = dataclasses.field(
        default_factory=dict
    )

    @property
    def largest(self) -> float:
        """The largest sum of losses, in nats; may be infinite."""
        if self.kind is not None:  # It does not depend on the noise.
            return float(self.counts.sum()) * self.losses[0].largest
        return math.fsum(
            count * loss.largest
            for loss, count in zip(
                self.losses, self.counts.tolist(), strict=True
            )
        )

    def intervals(self, tilt: float, tolerance: float) -> list[Interval]:
        """Returns losses that stand for the rounds.

        Args:
            tilt: The largest of the tilts they are for.
            tolerance: An error of `log M` of all rounds that is good enough.

        Raises:
            TooSlowError: There would be too many losses.
        """
        # Close tilts share their intervals.
        tilt = 2.0 ** (math.ceil(2 * math.log2(tilt)) / 2)
        if (tilt, tolerance) not in self.found:
            self.found[tilt, tolerance] = self._intervals(tilt, tolerance)
        return self.found[tilt, tolerance]

    def _intervals(self, tilt: float, tolerance: float) -> list[Interval]:
        found, single = [], np.ones(len(self.losses), dtype=np.bool_)
        if self.kind and len(self.losses) > _FEW:
            for part, interval in self._interpolated(
                self.kind, tilt, tolerance
            ):
                found.append(interval)
                single[part] = False
        if single.sum() > _MOST:
            raise TooSlowError
        if single.any():
            rest = np.flatnonzero(single).tolist()
            losses = [self.losses[each] for each in rest]
            found.append(Interval(losses, self.counts[rest], self.counts[rest]))
        return found

    def _interpolated(
        self, kind: Kind, tilt: float, tolerance: float
    ) -> Iterator[tuple[slice, Interval]]:
        """Yields the rounds that share points, and the interval of these."""
        v = self.variances
        low, high = float(v[0]) * (1 - 1e-12), float(v[-1]) * (1 + 1e-12)
        log_tolerance = math.log(tolerance / float(self.counts.sum()))
        best = float(len(self.losses)), 0, 0.0
        for pieces in _PIECES:
            if pieces >= best[0]:
                break
            start = high * (low / high) ** (1 / pieces)
            for axes in _AXES:
                bound = _log_bound(kind, start, high, axes, tilt)
                size = _size(bound, axes, log_tolerance)
                best = min(best, (pieces * size, pieces, axes))
        _, pieces, axes = best
        if not pieces:
            return
        ends = np.geomspace(low, high, pieces + 1)
        starts = np.searchsorted(v, ends)
        for k in range(pieces):
            part = slice(int(starts[k]), int(starts[k + 1]))
            bound = _log_bound(kind, ends[k], ends[k + 1], axes, tilt)
            size = _size(bound, axes, log_tolerance)
            if part.stop - part.start <= size:
                continue
            middle = (ends[k] + ends[k + 1]) / 2
            half = (ends[k + 1] - ends[k]) / 2
            at = (middle + half * _points(int(size))).tolist()
            places, counts = (v[part] - middle) / half, self.counts[part]
            sums = _sums_of_basis(places, counts, int(size))
            yield (
                part,
                Interval(
                    [kind.loss(each) for each in at],
                    counts,
                    sums @ _coefficients(int(size)),
                    places,
                    bound,
                    axes,
                ),
            )

    def decays(self, tilt: float) -> list[Repeated]:
        """Returns how fast the moments of the rounds fall.

        A tilted density of `v` is at least that of `a < v`, times `sqrt(a / v)
        e^((a-v) / 8) M(a) / M(v)`: it is a mixture, of which that share falls
        as the moments of `a` do.
        """
        v = self.variances
        if len(v) <= _BINS:
            return [
                Repeated(loss.decay(tilt), count)
                for loss, count in zip(
                    self.losses, self.counts.tolist(), strict=True
                )
            ]
        ends = np.searchsorted(v, np.geomspace(v[0], v[-1], _BINS + 1)[1:-1])
        found = []
        for part in np.split(np.arange(len(v)), ends):
            if not part.size:
                continue
            first, last = self.losses[part[0]], self.losses[part[-1]]
            a, b = float(v[part[0]]), float(v[part[-1]])
            log_share = (math.log(a / b) + (a - b) / 4) / 2
            at = np.array([tilt])
            apart = log_moments(first, at) - log_moments(last, at)
            share = math.exp(log_share + float(apart[0])) * (1 - 1e-9)
            count = float(self.counts[part].sum())
            found.append(Repeated(first.decay(tilt), count, share))
        return found


def families(
    losses: Sequence[LossDistribution], counts: Array
) -> tuple[Family, ...]:
    """Returns the losses, those that differ in their noise alone together."""
    alike: defaultdict[Kind, list[tuple[float, float]]] = defaultdict(list)
    single = []
    for index, loss in enumerate(losses):
        if isinstance(loss, MixtureLoss) and len(loss.probabilities) == 2:
            kind = Kind(loss.probabilities, loss.is_added)
            pair = loss.noise_multiplier, float(counts[index])
            alike[kind].append(pair)
        else:
            single.append(index)
    found = [
        family_of(kind, *np.array(members).T) for kind, members in alike.items()
    ]
    if single:
        others = [losses[index] for index in single]
        found.append(Family(others, counts[single], np.empty(0), None))
    return tuple(found)


def family_of(kind: Kind, noise_multipliers: Array, counts: Array) -> Family:
    """Returns the losses of one kind.

    Args:
        kind: The parameters that they share.
        noise_multipliers: `z`, shape `[losses]`.
        counts: How many rounds there are of each, of the same shape.
    """
    order = np.argsort(-noise_multipliers, kind="stable")
    z = noise_multipliers[order]
    return Family(_Noises(kind, z), counts[order], z**-2, kind)


@functools.lru_cache(maxsize=1024)
def _log_moment(loss: LossDistribution, tilt: float) -> float:
    """Returns `log M(tilt)`, or `inf`."""
    try:
        return float(log_moments(loss, np.array([tilt]))[0])
    except TooSlowError:
        return math.inf


def _log_bound(
    kind: Kind, start: float, end: float, axes: float, tilt: float
) -> float:
    """Returns the log of `B` for an interval of `v`, or `inf`."""
    turned = (axes * _ANGLES + 1 / (axes * _ANGLES)) / 2
    v = (start + end) / 2 + (end - start) / 2 * turned
    if v.real.min() <= 0:
        return math.inf
    larger = np.abs(v) ** 2 / v.real * _BETWEEN
    above = math.ceil(math.log(float(larger.max())) / math.log(_RATIO))
    moment = _log_moment(kind.loss(_RATIO**above), tilt)
    kernel = np.log(larger / np.abs(v)) / 2 + (larger - v.real) / 8
    return float(kernel.max()) + moment


def _size(log_bound: float, axes: float, log_tolerance: float) -> float:
    """Returns how many points an interval takes."""
    digits = log_bound + math.log(4 / (axes - 1)) - log_tolerance
    size = 1 + digits / math.log(axes)
    return math.ceil(size) if size <= _MOST_POINTS else math.inf
