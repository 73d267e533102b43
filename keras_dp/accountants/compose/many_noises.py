"""Many rounds that differ in their noise, at the cost of a few.

The log of a moment, as a function of `m = 1/z`, is analytic: a polynomial
through Chebyshev points stands for it, and the sum over all rounds is a sum
over these points, with weights that add up what each round gives to each.

If `log M` is analytic in an ellipse around an interval, with sum of half-axes
`r` (in units of half its length), and changes by at most `B` there, a
polynomial through `n` Chebyshev points is off by at most `4 B r^(1-n) / (r -
1)` (Trefethen 2013, "Approximation Theory and Approximation Practice", Theorem
8.2). `B` is measured on the boundary, where by the maximum principle it is
largest. There is no zero of `M` inside if its argument returns to where it
began.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import interpolate

from keras_dp.accountants.arrays import Array, log1p
from keras_dp.accountants.loss.log_moments import log_moments
from keras_dp.accountants.loss.loss_distribution import LossDistribution
from keras_dp.accountants.loss.mixture import MixtureLoss

# So many losses are a bundle, on intervals through so many points.
MANY = 80
_WIDE = 0.25
_POINTS = 40
# Sums of half-axes that are tried, and the points of an ellipse.
_ELLIPSES = (1.7, 2.2, 2.8)
_ANGLES = np.exp(1j * np.linspace(0, 2 * np.pi, 33))
# Between the points of the boundary the bound may be that much higher.
_SAFETY = 1.5
_FREQUENCIES = np.linspace(0.125, 1, 8)
# Half of the outputs of which layers are made, in noise stddevs.
_HALF_STAIRS = 0.2 * np.arange(21)
_MEMBERS_AT_ONCE = 4096
_WIDTHS_PER_OCTAVE = 16
# Values of `m` at which moments are computed that bound all others.
_MOMENTS = 64
# Reach of the quadrature of B, in noise stddevs; exponents beyond are dropped.
_STEP, _EXPONENT = 0.25, 300.0
# Less of the range is enough for it.
_LESS = 3.0
# |sin(y) / y| is at most this for y >= pi.
_LOBE = 0.2172336282112217
# 1 - sin(y)/y is y^2/6 - y^4/120 below it, where it would cancel.
_SMALL = 1e-2


class Layers(NamedTuple):
    """Uniform distributions within one: it is a mixture of them and a rest.

    A characteristic function is then at most `1 - sum_k p_k (1 - |sinc(t w_k /
    2)|)`: a bound for all frequencies, from a staircase below the density.

    Attributes:
        probabilities: Weight of each uniform distribution, > 0; shape `[n]`.
        widths: Width of each interval, in nats, > 0; shape `[n]`.
    """

    probabilities: Array
    widths: Array

    def fall(self, frequency: float) -> float:
        """Returns a lower bound on `1 - |M(c + i t)| / M(c)`, `t >= frequency`.

        `sinc` falls up to its first zero, and no later lobe exceeds the first
        of them.
        """
        half_turns = frequency * self.widths / 2
        y = np.clip(half_turns, _SMALL, np.pi)
        falls = 1 - np.maximum(np.sin(y) / y, _LOBE)
        small = half_turns**2 / 6 - half_turns**4 / 120
        falls = np.where(half_turns < _SMALL, small, falls)
        return float(falls @ self.probabilities)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """Sampled Gaussian rounds with one probability, in one order.

    Attributes:
        sampling_probability: `q`.
        is_added: See `MixtureLoss`.
        inverse_multipliers: `m` of the rounds, shape `[rounds]`.
        counts: Shape `[rounds]`.
        losses: At the Chebyshev points.
        weights: Weight of each point, shape `[losses]`.
        intervals: Start and end, shape `[intervals, 2]`.
        interval_counts: Rounds in each, shape `[intervals]`.
    """

    sampling_probability: float
    is_added: bool
    inverse_multipliers: Array
    counts: Array
    losses: tuple[MixtureLoss, ...]
    weights: Array
    intervals: Array
    interval_counts: Array

    def errors(self, tilt: float, frequencies: Array) -> Array:
        """Returns bounds on the error of the sum of all log moments.

        Args:
            tilt: `Re s`.
            frequencies: `|Im s|`, in rising order, shape `[n]`.

        Returns:
            Shape `[n]`, `inf` where there is no bound.
        """
        top = float(frequencies[-1])
        looked_at = np.unique(np.concatenate([[0.0], top * _FREQUENCIES]))
        total = np.zeros_like(looked_at)
        for (start, end), count in zip(
            self.intervals, self.interval_counts, strict=True
        ):
            total += count * self._error(start, end, tilt, looked_at)
        # The next one above, as errors grow with the frequency.
        total = np.maximum.accumulate(total)
        return np.asarray(total[np.searchsorted(looked_at, frequencies)])

    def layers(self, tilt: float) -> Layers:
        """Returns layers, "probabilities" summed over the rounds.

        The log of the size of the product of all `M(tilt + i t) / M(tilt)` is
        at most minus their sum over `1 - |sinc|`. Widths are rounded down.
        """
        found: defaultdict[int, float] = defaultdict(float)
        steps, logs = self._largest_log_moments(tilt)
        for start in range(0, self.counts.size, _MEMBERS_AT_ONCE):
            part = slice(start, start + _MEMBERS_AT_ONCE)
            m, counts = self.inverse_multipliers[part], self.counts[part]
            above = np.minimum(np.searchsorted(steps, m), _MOMENTS - 1)
            probabilities, widths = self._layers(
                m[:, None], logs[above][:, None], tilt
            )
            weights = probabilities * counts[:, None]
            kept = weights > 0
            octaves = np.floor(np.log2(widths[kept]) * _WIDTHS_PER_OCTAVE)
            which, place = np.unique(octaves, return_inverse=True)
            sums = np.bincount(place, weights[kept])
            for octave, total in zip(
                which.tolist(), sums.tolist(), strict=True
            ):
                found[int(octave)] += total
        octaves = np.array(list(found), dtype=np.float64)
        return Layers(
            np.array(list(found.values())),
            np.asarray(2.0 ** (octaves / _WIDTHS_PER_OCTAVE)),
        )

    def _layers(
        self, m: Array, log_moment: Array, tilt: float
    ) -> tuple[Array, Array]:
        """Returns layers around one or two outputs, a row for each round.

        The tilted loss has a peak next to 0, and may have one where it would
        be if the record were in every sample; half-way the two are kept apart.
        """
        other = (1 + tilt) * m if not self.is_added else np.zeros_like(m)
        has_two = other > _HALF_STAIRS[1]
        reach = np.where(has_two, other / 2, _HALF_STAIRS[-1])
        probabilities, widths = self._around(
            m, log_moment, np.zeros_like(m), reach, tilt
        )
        if not has_two.any():
            return probabilities, widths
        reach = np.where(has_two, other / 2, 0.0)
        more = self._around(m, log_moment, other, reach, tilt)
        return (
            np.concatenate([probabilities, more[0]], axis=1),
            np.concatenate([widths, more[1]], axis=1),
        )

    def _around(
        self,
        m: Array,
        log_moment: Array,
        center: Array,
        reach: Array,
        tilt: float,
    ) -> tuple[Array, Array]:
        """Returns nested layers around `center`, not beyond `reach`."""
        u = center + np.concatenate([-_HALF_STAIRS[:0:-1], _HALF_STAIRS])
        half = _HALF_STAIRS.size - 1
        q = self.sampling_probability
        w = m * u - m * m / 2
        log_ratio = np.log1p(q * np.expm1(w))
        exponent = -tilt if self.is_added else 1 + tilt
        bend = 0.0 if self.is_added else (1 + tilt) * m**2 / 4
        log_density = exponent * log_ratio - u * u / 2
        log_density = log_density - math.log(2 * math.pi) / 2
        log_density = log_density - bend * _HALF_STAIRS[1] ** 2 / 8
        density = np.exp(log_density - log_moment)
        slope = m * q * np.exp(w - log_ratio)
        heights = np.minimum(density[:, 1:], density[:, :-1]) / slope[:, 1:]
        outward = np.minimum(heights[:, half:], heights[:, half - 1 :: -1])
        heights = np.minimum.accumulate(outward, axis=1)
        heights = np.where(_HALF_STAIRS[1:] <= reach, heights, 0.0)
        widths = log_ratio[:, half + 1 :] - log_ratio[:, half - 1 :: -1]
        lower = np.concatenate(
            [heights[:, 1:], np.zeros_like(heights[:, :1])], axis=1
        )
        return (heights - lower) * widths, widths

    def _largest_log_moments(self, tilt: float) -> tuple[Array, Array]:
        """Returns some `m`, and `log M(tilt)` there, which rises in `m`."""
        least, largest = self.inverse_multipliers[[0, -1]]
        steps = np.geomspace(least, largest * (1 + 1e-12), _MOMENTS)
        logs = [
            log_moments(loss, np.array([tilt]))[0]
            for loss in self._losses(steps)
        ]
        return steps, np.array(logs)

    def _losses(self, m: Array) -> list[MixtureLoss]:
        q = self.sampling_probability
        return [MixtureLoss(1 / each, (1 - q, q), self.is_added) for each in m]

    def _error(
        self, start: float, end: float, tilt: float, frequencies: Array
    ) -> Array:
        """Returns bounds on the error of one round in an interval."""
        best = np.full_like(frequencies, np.inf)
        for axes in _ELLIPSES:
            size = self._size(start, end, axes, tilt, frequencies)
            bound = 4 * size * axes ** (1.0 - _POINTS) / (axes - 1)
            best = np.minimum(best, bound)
        return best

    def _size(
        self,
        start: float,
        end: float,
        axes: float,
        tilt: float,
        frequencies: Array,
    ) -> Array:
        """Returns the largest change of `log M` on an ellipse, or `inf`.

        That is, if `M` may have a zero in it: if its argument does not return
        to where it began.
        """
        turned = (axes * _ANGLES + 1 / (axes * _ANGLES)) / 2
        m = (start + end) / 2 + (end - start) / 2 * turned
        q = self.sampling_probability
        reach = float(np.abs(m).max())
        loss = MixtureLoss(1 / reach, _both(q), self.is_added)
        low, high = loss.range(tilt)
        u = np.arange(low + _LESS, high - _LESS, min(_STEP, _STEP / reach))
        w = m[:, None] * u - m[:, None] ** 2 / 2
        # R is no negative number, where its logarithm would jump.
        if w.real.max() > _EXPONENT or np.abs(w.imag).max() > np.pi:
            return np.full_like(frequencies, np.inf)
        change = q * np.expm1(w)
        log_ratio = log1p(change)
        density = np.exp(-u * u / 2) * (u[1] - u[0]) / math.sqrt(2 * math.pi)
        sizes = []
        for t in frequencies:
            s = tilt + 1j * t
            power = -s if self.is_added else 1 + s
            exponent = power * log_ratio
            if float(exponent.real.max()) > _EXPONENT:
                sizes.append(math.inf)
                continue
            moment = 1 + (np.expm1(exponent) - power * change) @ density
            steps = np.log(moment[1:] / moment[:-1])
            returns = (
                abs(steps.imag.sum()) < 1 and np.abs(steps).max() < np.pi / 2
            )
            along = np.abs(np.cumsum(steps)).max()
            sizes.append(_SAFETY * float(along) if returns else math.inf)
        return np.array(sizes)


def bundled(
    losses: Sequence[LossDistribution], counts: Array, ratio: float
) -> tuple[list[LossDistribution], list[float], list[Bundle]]:
    """Returns losses to be taken one by one, their counts, and bundles.

    Args:
        losses: Losses of single rounds.
        counts: How many there are of each, shape `[losses]`.
        ratio: Ratio of the ends of an interval, > 1.
    """
    alone: list[LossDistribution] = []
    alone_counts: list[float] = []
    families: defaultdict[tuple[float, bool], list[tuple[float, float]]]
    families = defaultdict(list)
    for loss, count in zip(losses, counts.tolist(), strict=True):
        if isinstance(loss, MixtureLoss) and len(loss.probabilities) == 2:
            family = loss.probabilities[1], loss.is_added
            families[family].append((1 / loss.noise_multiplier, count))
        else:
            alone.append(loss)
            alone_counts.append(count)
    bundles = []
    for (q, is_added), members in families.items():
        m, rounds = np.array(sorted(members)).T
        bundle = _bundle(q, is_added, m, rounds, ratio)
        if len(bundle.losses) < len(members):
            bundles.append(bundle)
            continue
        for each, count in members:
            alone.append(MixtureLoss(1 / each, _both(q), is_added))
            alone_counts.append(count)
    return alone, alone_counts, bundles


def _bundle(
    q: float, is_added: bool, m: Array, counts: Array, ratio: float
) -> Bundle:
    """Returns a bundle of rounds with rising `m`."""
    points = -np.cos(np.pi * (np.arange(_POINTS) + 0.5) / _POINTS)
    basis = interpolate.BarycentricInterpolator(points, np.eye(_POINTS))
    least, largest = float(m[0]), float(m[-1]) * (1 + 1e-12)
    # Below `_WIDE` one interval is no longer than those above it.
    first = max(least, min(_WIDE, largest))
    size = math.ceil(math.log(largest / first) / math.log(ratio))
    ends = np.geomspace(first, largest, size + 1)
    if least < first:
        ends = np.concatenate([[least], ends])
    size = ends.size - 1
    which = np.clip(np.searchsorted(ends, m, side="right") - 1, 0, size - 1)
    totals, losses, weights = [], [], []
    for k in range(size):
        inside = which == k
        middle, half = (ends[k] + ends[k + 1]) / 2, (ends[k + 1] - ends[k]) / 2
        totals.append(float(counts[inside].sum()))
        weights.append(counts[inside] @ basis((m[inside] - middle) / half))
        losses += [
            MixtureLoss(1 / each, _both(q), is_added)
            for each in (middle + half * points).tolist()
        ]
    intervals = np.stack([ends[:-1], ends[1:]], axis=1)
    return Bundle(
        q,
        is_added,
        m,
        counts,
        tuple(losses),
        np.concatenate(weights),
        intervals,
        np.array(totals),
    )


def _both(q: float) -> tuple[float, float]:
    return 1 - q, q
