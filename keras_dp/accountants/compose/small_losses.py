"""Rounds that hardly ever draw the record, composed on a grid.

Their losses are next to 0, but for a few large ones, which keep the line of
`integral` far from where it would be short. So epsilon is bounded on a
grid whose step follows from the losses. Each cell of outputs has a mass under
`Q`, and the excess of its mass under `P` over it, which is computed by itself:
nothing cancels where the likelihood ratio is next to 1.

*Above.* The mass of each cell moves to its two ends, without moving the mean
of the ratio: a larger ratio in the convex order, which dominates. *Below.*
Whoever sees only the cell of an output knows less. The losses of the cells are
rounded down to the grid. The cells lie around its points, so that this takes
next to nothing from them.

Bounds on the errors of float64 are added to the masses, or subtracted. The
proofs are (9.1) to (9.5) of docs/accounting.md.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from scipy import special

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.compose import tilted
from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.loss.fixed_size import FixedSizeLoss
from keras_dp.accountants.loss.loss_distribution import LossDistribution
from keras_dp.accountants.loss.mixture import MixtureLoss, ReplaceOneLoss
from keras_dp.errors import NumericalLimitError

# Steps, as shares of the stddev of the loss of an average round.
_STEP_ABOVE, _STEP_BELOW = 0.05, 0.02
_MOST_POINTS, _MOST_ROUNDS = 1 << 17, 1e6
# Where cells below begin, in steps from the points of the grid: a little above
# the middle, so that their means are above the points.
_FROM_POINT = -0.49
# Delta of what is beyond the grid, as a share.
_LEFT_OUT = 1e-5
# Where errors hide a lower bound, there are some that are so much further, in
# nats: from here to there, and how many.
_FURTHER = 0.1, 1e3, 60
# Errors of masses and of edges, (9.1) and (9.2), and where they hold.
_ERROR, _NOTHING = 1e-12, 1e-300
_LEAST_NOISE, _MOST_Q, _MOST_REACH, _MOST_LOSS = 0.3, 0.1, 37.0, 25.0
# Rounding takes less of a result, and of a loss in steps.
_ROUNDING = 1e-9


class _Cells(NamedTuple):
    """Masses below the first of some edges, between them, and above the last.

    Attributes:
        masses: Under `Q`.
        excess: Masses under `P`, less those under `Q`.
        of_masses: Bounds on the errors of `masses`.
        of_excess: Bounds on the errors of `excess`.
    """

    masses: Array
    excess: Array
    of_masses: Array
    of_excess: Array


class _Sampled(NamedTuple):
    """Poisson samples: `N(0, 1)`, drawn `N(a, 1)` or else `N(b, 1)`.

    Attributes:
        loss: The loss of one of them.
        rounds: How many.
        q: The probability that the record is drawn.
        shift: How far it moves the output, in noise stddevs.
    """

    loss: MixtureLoss | ReplaceOneLoss
    rounds: int
    q: float
    shift: float

    @property
    def variance(self) -> float:
        """The variance of the loss of one round, about."""
        records = 2 if isinstance(self.loss, ReplaceOneLoss) else 1
        return records * self.q**2 * math.expm1(self.shift**2)

    @property
    def drawn(self) -> tuple[float, float]:
        """`a >= 0` under `P`, and `b <= 0` under `Q`: losses rise."""
        m = self.shift
        if isinstance(self.loss, ReplaceOneLoss):
            return m, -m
        return (0.0, -m) if self.loss.is_added else (m, 0.0)

    def ends(self, reach: float) -> tuple[float, float]:
        """Returns the losses next to which outputs end, and the most."""
        far = reach + self.shift
        return self.loss_at(-far), self.loss_at(far)

    def loss_at(self, output: float) -> float:
        """Returns the loss of an output, which it rises with."""
        u = output if self.loss.rises else -output
        return float(self.loss.losses(np.array([u]))[0])

    def outputs(self, losses: Array) -> Array:
        """Returns the outputs of losses, infinite where there are none."""
        q, m = self.q, self.shift
        if isinstance(self.loss, ReplaceOneLoss):
            c = q * math.exp(-m * m / 2)
            most = np.arcsinh(np.sinh(losses / 2) * (1 - q) / c)
            return np.asarray((losses / 2 + most) / m)
        sign = -1 if self.loss.is_added else 1
        with np.errstate(divide="ignore"):
            logs = np.log1p(np.maximum(np.expm1(sign * losses) / q, -1.0))
        return np.asarray(sign * (logs / m + m / 2))

    def off(self, losses: Array) -> Array:
        """Returns bounds on how far outputs are from losses; see (9.2)."""
        return np.asarray(_ERROR * (np.abs(np.expm1(losses)) + self.q))

    def cells(self, losses: Array) -> _Cells:
        """Returns masses between rising losses."""
        u = self.outputs(losses)
        (free, of_free), (p, of_p), (q, of_q) = (
            _masses(u - shift) for shift in (0.0, *self.drawn)
        )
        share = self.q
        return _Cells(
            (1 - share) * free + share * q,
            share * (p - q),
            (1 - share) * of_free + share * of_q,
            share * (of_p + of_q),
        )


class _Mirrored(NamedTuple):
    """Samples of fixed size; see `_Sampled`, `FixedSizeLoss` and (9.5)."""

    part: _Sampled

    @property
    def rounds(self) -> int:
        return self.part.rounds

    @property
    def q(self) -> float:
        return self.part.q

    @property
    def variance(self) -> float:
        return 2 * self.part.variance

    def ends(self, reach: float) -> tuple[float, float]:
        _, most = self.part.ends(reach)
        return -most, most

    def off(self, losses: Array) -> Array:
        return self.part.off(np.abs(losses))

    def cells(self, losses: Array) -> _Cells:
        """Returns masses between losses, some negative and some positive."""
        high = self._positive(losses)
        low = self._positive(-losses[::-1])
        mirrored = _Cells(*(each[::-1] for each in low))
        found = _Cells(
            high.masses + mirrored.masses + mirrored.excess,
            high.excess - mirrored.excess,
            high.of_masses + mirrored.of_masses + mirrored.of_excess,
            high.of_excess + mirrored.of_excess,
        )
        # The mass at 0 is `P(l < 0) - Q(l > 0)`.
        at = np.searchsorted(losses, 0.0, "right")
        q, m = self.part.q, self.part.shift
        found.masses[at] += (1 - q) * math.erf(m / math.sqrt(8))
        found.of_masses[at] += _ERROR
        return found

    def _positive(self, losses: Array) -> _Cells:
        """Returns the masses of positive losses between rising losses."""
        found = self.part.cells(np.maximum(losses, 0.0))
        for each in found:
            each[: np.searchsorted(losses, 0.0, "right")] = 0.0
        return found


_Kind = _Sampled | _Mirrored


def supports(composition: Composition) -> bool:
    """Returns whether all rounds are samples, and there are not too many."""
    return (
        not composition.gaussian
        and composition.counts.sum() <= _MOST_ROUNDS
        and all(_sampled(each) for each in composition.losses)
    )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class GridBounds:
    """Bounds on delta, good for epsilons next to the one they were made for.

    Attributes:
        above: The sum of losses that dominate.
        below: The sum of losses of whoever sees less.
        known: Lower bounds next to where the sum below was tilted to: rising
            epsilons, and the largest bound from each of them on.
    """

    above: tilted.Sum
    below: tilted.Sum
    known: list[tuple[Array, Array]] = dataclasses.field(default_factory=list)

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """Returns a lower and an upper bound on the log of delta."""
        # Rounding moves a loss by this share, or delta.
        upper = self.above.delta(epsilon * (1 - _ROUNDING), is_upper=True)
        return (
            self._lower(epsilon) or self._lower_of_more(epsilon),
            min(math.log(upper) + _ROUNDING, 0.0) if upper else 0.0,
        )

    def _lower(self, epsilon: float) -> float:
        """Returns a lower bound, 0 where errors hide it."""
        lower = self.below.delta(epsilon * (1 + _ROUNDING), is_upper=False)
        return math.log(lower) - _ROUNDING if lower else 0.0

    def _lower_of_more(self, epsilon: float) -> float:
        """Returns a lower bound at larger epsilons, where delta is less."""
        if not self.known:
            steps = np.geomspace(*_FURTHER) / self.below.tilt
            at = np.maximum(self.below.epsilon - steps[::-1], 0.0)
            some = [self._lower(float(each)) or -math.inf for each in at]
            largest = np.maximum.accumulate(some[::-1])[::-1]
            self.known.append((at, largest))
        at, largest = self.known[0]
        first = int(np.searchsorted(at, epsilon))
        return float(largest[first]) if first < at.size else -math.inf


def bounds_near(
    composition: Composition, epsilon: float, log_delta: float, is_given: bool
) -> GridBounds:
    """Returns bounds that are good next to an epsilon, or to a given delta.

    Raises `NumericalLimitError` if there is little noise, `q` is large, or
    delta is next to nothing, and `TooSlowError` if the sum has too many points.
    """
    kinds = _kinds(composition)
    # There is less mass beyond than is left out of delta.
    drawn = math.fsum(each.rounds * each.q for each in kinds)
    beyond = min(math.log(_LEFT_OUT / drawn) + log_delta, math.log(0.5))
    reach = -float(special.ndtri_exp(beyond))
    target = epsilon, log_delta if is_given else None
    below, above = (
        _composed(kinds, reach, is_upper, *target) for is_upper in (False, True)
    )
    return GridBounds(above, below)


def _sampled(loss: LossDistribution) -> MixtureLoss | ReplaceOneLoss | None:
    """Returns the loss of the Poisson sample that a loss is made of, if any."""
    if isinstance(loss, FixedSizeLoss) and len(loss.parts) == 1:
        return loss.parts[0]
    if isinstance(loss, MixtureLoss) and len(loss.probabilities) == 2:
        return loss
    return loss if isinstance(loss, ReplaceOneLoss) else None


def _kinds(composition: Composition) -> list[_Kind]:
    kinds: list[_Kind] = []
    for loss, count in zip(
        composition.losses, composition.counts.tolist(), strict=True
    ):
        sampled = _sampled(loss)
        if isinstance(sampled, ReplaceOneLoss):
            q = sampled.sampling_probability
        elif sampled is not None:
            q = sampled.probabilities[1]
        else:
            raise NumericalLimitError("`composition` must be supported.")
        z = sampled.noise_multiplier
        if z < _LEAST_NOISE or q > _MOST_Q:
            raise NumericalLimitError("Losses must be small.")
        part = _Sampled(sampled, round(count), q, 1 / z)
        kinds.append(part if sampled is loss else _Mirrored(part))
    return kinds


def _composed(
    kinds: list[_Kind],
    reach: float,
    is_upper: bool,
    epsilon: float,
    log_delta: float | None,
) -> tilted.Sum:
    ends = [each.ends(reach) for each in kinds]
    total = math.fsum(each.rounds for each in kinds)
    variance = math.fsum(each.rounds * each.variance for each in kinds)
    if max(max(-low, high) for low, high in ends) > _MOST_LOSS:
        raise NumericalLimitError("Losses must be small.")
    longest = max(high - low for low, high in ends)
    share = _STEP_ABOVE if is_upper else _STEP_BELOW
    step = max(share * math.sqrt(variance / total), longest / _MOST_POINTS)
    if not 0 < step < math.inf or reach > _MOST_REACH:
        raise NumericalLimitError("`delta` must be larger, or the noise.")
    of_kind = _above if is_upper else _below
    parts = [
        of_kind(
            each,
            step,
            np.arange(math.floor(low / step), math.ceil(high / step) + 2.0),
        )
        for each, (low, high) in zip(kinds, ends, strict=True)
    ]
    return tilted.composed(parts, step, epsilon, log_delta)


def _masses(u: Array) -> tuple[Array, Array]:
    """Returns normal masses between numbers, and bounds on their errors."""
    masses = between(u)
    tails = np.concatenate([[0.0], special.ndtr(-np.abs(u)), [0.0]])
    return masses, _ERROR * (masses + tails[:-1] + tails[1:]) + _NOTHING


def _above(kind: _Kind, step: float, places: Array) -> tilted.LossMasses:
    """Returns losses that dominate, on the points of a grid; see (9.3)."""
    logs = step * places
    points = np.expm1(logs)
    # No output of a cell has a larger loss than its upper end.
    off = kind.off(logs)
    masses, excess, of_masses, of_excess = kind.cells(logs - off)
    low, high = points[:-1], points[1:]
    length = np.exp(logs[:-1]) * math.expm1(step)
    q, more = masses[1:-1], excess[1:-1]
    error = np.maximum(np.abs(low), np.abs(high)) * of_masses[1:-1]
    error += of_excess[1:-1]
    found = np.zeros(len(points))
    found[:-1] += (np.maximum(high * q - more, 0) + error) / length
    found[1:] += (np.maximum(more - low * q, 0) + error) / length
    found[1:] += 2 * off[:-1] / step * q
    # Below, to 0 and the first point; above, to the last one and infinity.
    found[0] += (
        masses[0] + excess[0] + of_masses[0] + of_excess[0]
    ) / math.exp(logs[0])
    found[-1] += masses[-1] + of_masses[-1]
    infinite = max(0.0, float(excess[-1] - points[-1] * masses[-1]))
    infinite += float(of_excess[-1] + points[-1] * of_masses[-1])
    infinite += float(2 * off[-1] * math.exp(logs[-1]) * masses[-1])
    return tilted.LossMasses(
        round(float(places[0])), found * np.exp(logs), infinite, kind.rounds
    )


def _below(kind: _Kind, step: float, places: Array) -> tilted.LossMasses:
    """Returns losses of whoever sees cells, rounded down; see (9.4)."""
    masses, excess, of_masses, of_excess = kind.cells(
        step * (places + _FROM_POINT)
    )
    least = excess - of_excess
    under_p = masses - of_masses + least
    seen = (masses > of_masses) & (under_p > _ROUNDING * masses)
    masses += np.where(least > 0, of_masses, -of_masses)
    losses = np.log1p(least[seen] / masses[seen])
    found = np.floor(losses / step - _ROUNDING).astype(np.int64)
    first = int(found.min())
    return tilted.LossMasses(
        first,
        np.asarray(np.bincount(found - first, under_p[seen]), np.float64),
        0.0,
        kind.rounds,
    )


def between(u: Array) -> Array:
    """Returns the normal masses between numbers, relatively precise."""
    below, above = special.ndtr(u), special.ndtr(-u)
    inner = np.where(u[:-1] < 0, np.diff(below), -np.diff(above))
    return np.concatenate([below[:1], np.maximum(inner, 0), above[-1:]])
