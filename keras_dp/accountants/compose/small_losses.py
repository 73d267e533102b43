"""Rounds that hardly ever draw the record, composed on a grid.

Their losses are next to 0, but for a few large ones, which keep the line of
`integral` far from where it would be short. So epsilon is bounded on a
grid whose step follows from the losses. Each cell of outputs has a mass under
`Q`, and the excess of its mass under `P` over it, which is computed by itself:
nothing cancels where the likelihood ratio is next to 1.

*Above.* The mass of each cell moves to its two ends, without moving the mean
of the ratio: a larger ratio in the convex order, which dominates. *Below.*
Whoever sees only the cell of an output knows less. The losses of the cells are
rounded down to the grid. The cells are moved until their losses are next above
its points, so that this takes next to nothing from them.

A first grid tells where epsilon is, and the tilt. The step of the second one
follows from the width that is wanted, as far as time allows.

Bounds on the errors of float64 are added to the masses, or subtracted. The
proofs are (9.1) to (9.5) of docs/accounting.md.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.compose import tilted
from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.loss.fixed_size import FixedSizeLoss
from keras_dp.accountants.loss.loss_distribution import LossDistribution
from keras_dp.accountants.loss.mixture import MixtureLoss, ReplaceOneLoss
from keras_dp.accountants.roots import last_true
from keras_dp.errors import NumericalLimitError

# The first step, as a share of the stddev of the loss of an average round.
_STEP = 0.05
# The share of the width that the steps take, and the narrowest one.
_SHARE, _NARROWEST = 0.5, 1e-6
# Relative precision of the epsilon at which the tilt is the best one.
_NEAREST = 1e-3
_MOST_FIRST, _MOST_POINTS, _MOST_ROUNDS = 1 << 16, 1 << 19, 1e6
# Where cells below begin, in steps from the points of the grid; how often they
# are moved, and how far above the points their losses then are.
_FROM_POINT, _MOVES, _ABOVE_POINT = -0.5, 2, 1e-4
# Delta of what is beyond the grid, as a share.
_LEFT_OUT = 1e-5
# Where errors hide a lower bound, there are some that are so much further, in
# nats: from here to there, and how many.
_FURTHER = 0.1, 1e3, 60
# Errors of masses and of edges, (9.1) and (9.2), and where they hold.
_TAIL_ERROR, _FAR, _ERROR, _NOTHING = 1e-15, 2e3, 1e-12, 1e-307
_LEAST_NOISE, _MOST_Q, _MOST_REACH, _MOST_LOSS = 0.3, 0.1, 37.0, 25.0
# Newton's method, for samples of several records.
_MOST_STEPS, _PRECISE = 60, 2e-15
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
    """Poisson samples, in which records are drawn, or not: then `N(0, 1)`.

    Attributes:
        loss: The loss of one of them.
        rounds: How many.
        chances: That 1, 2, ... of the records are drawn.
        shift: How far each of them moves the output, in noise stddevs.
    """

    loss: MixtureLoss | ReplaceOneLoss
    rounds: int
    chances: tuple[float, ...]
    shift: float

    @property
    def q(self) -> float:
        """The probability that a record is drawn."""
        return math.fsum(self.chances)

    @property
    def farthest(self) -> float:
        """How far all records together move the output."""
        return self.shift * len(self.chances)

    @property
    def variance(self) -> float:
        """The variance of the loss of one round, about."""
        records = 2 if isinstance(self.loss, ReplaceOneLoss) else 1
        mean = sum(p * k for k, p in enumerate(self.chances, 1))
        return records * mean**2 * math.expm1(self.shift**2)

    @property
    def drawn(self) -> list[tuple[float, float, float]]:
        """Chances, `a >= 0` under `P` and `b <= 0` under `Q`: losses rise."""
        of_p, of_q = 1, 0
        if isinstance(self.loss, ReplaceOneLoss):
            of_q = -1
        elif self.loss.is_added:
            of_p, of_q = 0, -1
        return [
            (chance, of_p * k * self.shift, of_q * k * self.shift)
            for k, chance in enumerate(self.chances, 1)
        ]

    def ends(self, reach: float) -> tuple[float, float]:
        """Returns the losses next to which outputs end, and the most."""
        far = reach + self.farthest
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
        found = logs / m + m / 2
        if len(self.chances) > 1:
            found = self._several(logs, found)
        return np.asarray(sign * found)

    def _several(self, logs: Array, outputs: Array) -> Array:
        """Returns where the mixture of those drawn over `N(0, 1)` has logs.

        The log of the mixture is convex, so that Newton's method comes near
        from above, after one step.
        """
        moved = self.shift * np.arange(1, len(self.chances) + 1)[:, None]
        shares = np.log(np.array(self.chances) / self.q)[:, None]
        some = np.isfinite(logs)
        at, aim = outputs[some], logs[some]
        for _ in range(_MOST_STEPS):
            terms = shares + moved * (at - moved / 2)
            peak = terms.max(axis=0)
            terms = np.exp(terms - peak)
            total = terms.sum(axis=0)
            off = peak + np.log(total) - aim
            if np.all(np.abs(off) <= _PRECISE * (1 + np.abs(at))):
                found = outputs.copy()
                found[some] = at
                return found
            at = at - off * total / (moved * terms).sum(axis=0)
        raise NumericalLimitError("`losses` must have outputs.")

    def off(self, losses: Array) -> Array:
        """Returns bounds on how far outputs are from losses; see (9.2)."""
        return np.asarray(_ERROR * (np.abs(np.expm1(losses)) + self.q))

    def cells(self, losses: Array) -> _Cells:
        """Returns masses between rising losses."""
        u = self.outputs(losses)
        free, of_free = _masses(u)
        known = {0.0: (free, of_free)}
        found = _Cells(
            (1 - self.q) * free,
            np.zeros_like(free),
            (1 - self.q) * of_free,
            np.zeros_like(free),
        )
        for chance, *drawn in self.drawn:
            for each in drawn:
                if each not in known:
                    known[each] = _masses(u - each)
            (p, of_p), (q, of_q) = (known[each] for each in drawn)
            for total, more in zip(
                found, (q, p - q, of_q, of_p + of_q), strict=True
            ):
                total += chance * more
        return found


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
    composition: Composition,
    epsilon: float,
    log_delta: float,
    width: float,
    *,
    is_given: bool,
) -> GridBounds:
    """Returns bounds that are good next to an epsilon, or to a given delta.

    They may be apart by the width: in nats, or as a share of the epsilon of the
    given delta.

    Raises `NumericalLimitError` if there is little noise, `q` is large, or
    delta is next to nothing, and `TooSlowError` if the sum has too many points.
    """
    kinds = _kinds(composition)
    # There is less mass beyond than is left out of delta.
    drawn = math.fsum(each.rounds * each.q for each in kinds)
    beyond = min(math.log(_LEFT_OUT / drawn) + log_delta, math.log(0.5))
    reach = min(-float(special.ndtri_exp(beyond)), _MOST_REACH)
    ends = [each.ends(reach) for each in kinds]
    if max(max(-low, high) for low, high in ends) > _MOST_LOSS:
        raise NumericalLimitError("Losses must be small.")
    total = math.fsum(each.rounds for each in kinds)
    variance = math.fsum(each.rounds * each.variance for each in kinds)
    longest = max(high - low for low, high in ends)
    step = max(_STEP * math.sqrt(variance / total), longest / _MOST_FIRST)
    if not 0 < step < math.inf:
        raise NumericalLimitError("`step` must be within float64.")
    parts = _parts(_above, kinds, ends, step)
    target, width = log_delta if is_given else None, max(width, _NARROWEST)
    first = tilted.composed(
        parts, step, *tilted.best_tilt(parts, step, epsilon, target)
    )
    if is_given:
        epsilon = last_true(
            lambda e: first.delta(e, is_upper=True) >= math.exp(log_delta),
            0.0,
            first.epsilon,
            share=_NEAREST,
        )
        width *= first.tilt * epsilon
    tilt, _ = tilted.best_tilt(parts, step, epsilon)
    # Each round is spread by at most half a step, whose square adds to its
    # variance, and to its mean.
    fine = math.sqrt(8 * _SHARE * width / total) / max(tilt, 1.0)
    least = float(np.ptp(first.losses)) / (2 * _MOST_POINTS)
    step = min(step, max(fine, least, longest / _MOST_POINTS))
    below, above = (
        tilted.composed(_parts(of_kind, kinds, ends, step), step, tilt, epsilon)
        for of_kind in (_below, _above)
    )
    return GridBounds(above, below)


def _sampled(loss: LossDistribution) -> MixtureLoss | ReplaceOneLoss | None:
    """Returns the loss of the Poisson sample that a loss is made of, if any."""
    if isinstance(loss, FixedSizeLoss):
        return loss.part
    return loss if isinstance(loss, MixtureLoss | ReplaceOneLoss) else None


def _kinds(composition: Composition) -> list[_Kind]:
    kinds: list[_Kind] = []
    for loss, count in zip(
        composition.losses, composition.counts.tolist(), strict=True
    ):
        sampled = _sampled(loss)
        if isinstance(sampled, ReplaceOneLoss):
            chances: tuple[float, ...] = (sampled.sampling_probability,)
        elif sampled is not None:
            chances = sampled.probabilities[1:]
        else:
            raise NumericalLimitError("`composition` must be supported.")
        part = _Sampled(
            sampled, round(count), chances, 1 / sampled.noise_multiplier
        )
        if part.farthest > 1 / _LEAST_NOISE or part.q > _MOST_Q:
            raise NumericalLimitError("Losses must be small.")
        kinds.append(part if sampled is loss else _Mirrored(part))
    return kinds


def _parts(
    of_kind: Callable[[_Kind, float, Array], tilted.LossMasses],
    kinds: list[_Kind],
    ends: list[tuple[float, float]],
    step: float,
) -> list[tilted.LossMasses]:
    return [
        of_kind(
            each,
            step,
            np.arange(math.floor(low / step), math.ceil(high / step) + 2.0),
        )
        for each, (low, high) in zip(kinds, ends, strict=True)
    ]


def _masses(u: Array) -> tuple[Array, Array]:
    """Returns normal masses between numbers, and bounds on their errors."""
    tails = special.ndtr(-np.abs(u))
    rises = u < 0
    inner = np.where(rises[:-1], np.diff(tails), -np.diff(tails))
    around = rises[:-1] & ~rises[1:]
    inner[around] = 1 - tails[:-1][around] - tails[1:][around]
    first = tails[0] if rises[0] else 1 - tails[0]
    last = 1 - tails[-1] if rises[-1] else tails[-1]
    masses = np.concatenate([[first], np.maximum(inner, 0.0), [last]])
    errors = tails * (1 + np.minimum(u * u, _FAR))
    errors = np.concatenate([[0.0], errors, [0.0]])
    errors = errors[:-1] + errors[1:] + masses
    return masses, _TAIL_ERROR * errors + _NOTHING


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
    edges = step * (places + _FROM_POINT)
    for move in range(_MOVES + 1):
        masses, excess, of_masses, of_excess = kind.cells(edges)
        least = excess - of_excess
        under_p = masses - of_masses + least
        seen = (masses > of_masses) & (under_p > _ROUNDING * masses)
        seen[-1] = False  # A tilt would see nothing else.
        masses += np.where(least > 0, of_masses, -of_masses)
        losses = np.zeros(seen.size)
        losses[seen] = np.log1p(least[seen] / masses[seen]) / step
        if not move:
            # The cell with most of the mass may have nearly all of it: it is
            # above a point of the grid as it is.
            most = losses[int(np.argmax(np.where(seen, under_p, 0.0)))]
            start = float(most - np.rint(most)) - _ABOVE_POINT
        if move < _MOVES:
            missing = places + start + _ABOVE_POINT - losses[1:]
            missing = np.where(seen[1:], np.clip(missing, -0.25, 0.25), 0.0)
            missing[1:] = (missing[1:] + missing[:-1]) / 2
            # Any edges do that rise.
            edges = np.maximum.accumulate(edges + step * missing)
    found = np.floor(losses[seen] - start - _ROUNDING).astype(np.int64)
    first = int(found.min())
    return tilted.LossMasses(
        first + start,
        np.asarray(np.bincount(found - first, under_p[seen]), np.float64),
        0.0,
        kind.rounds,
    )
