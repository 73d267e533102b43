"""The best of a random number of trials, from the profile of one trial.

docs/accounting.md, section 8, proves the bound. It needs upper bounds on the
delta of one trial at some epsilons, and nothing else of the trial.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.groups import BoundForOneRecord, UnitGroup
from keras_dp.accountants.normalize.mechanisms import (
    SLACK,
    CountedMechanism,
    Mechanism,
    ProfilePair,
    Selected,
    in_order,
)
from keras_dp.accountants.roots import last_true
from keras_dp.ledger import TruncatedNegativeBinomial

# How many positive epsilons a trial is asked for.
_POINTS = 64
# Chances to be better than an output: in all, and far below the scale of the
# law, where the law hardly changes.
_PLACES, _FAR_PLACES = 4000, 300
_NEAR, _LEAST_PLACE = 1e-4, 1e-20
# Shares of the trial's delta that may be left at the largest epsilon: the first
# one that a trial can reach is taken.
_SHARES = (1e-4, 1e-2, 0.3)
# A delta that need not be known more precisely.
_LARGE = 0.9
# A trial that costs less is asked up to here.
_LEAST_END = 1e-3
# Relative precision of epsilon.
_PRECISION = 1e-9
# Exceeds the rounding of a few products; and of sums of hundreds of chords,
# which lose digits in second differences.
_ROUND_UP, _CHORDS_ROUND_UP = 1e-12, 1e-9
# Each profile is for as many powers of ten of delta; none is good below this.
_DECADES = 3
_LEAST_DELTA = 1e-290
# The points of the pair of a search, and what may lie beyond the last one as a
# share of delta.
_PAIR_POINTS, _PAIR_SHARE = 128, 1e-4


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SearchProfile:
    """The profile of a search, from points of the profile of a trial.

    Guarantee: `delta` is an upper bound (docs/accounting.md, 8.4).

    Attributes:
        epsilons: Rising, of both signs, shape `[n]`.
        deltas: At least the delta of one trial at these, shape `[n]`.
        weights: `phi'(1 - x)` at the beginning of each cell of places, rounded
            up; shape `[cells]`.
        others: `phi'(1 - T(x))` at the end of each cell, rounded down.
    """

    epsilons: Array
    deltas: Array
    weights: Array
    others: Array

    def delta(self, epsilon: float) -> float:
        """Returns an upper bound on delta, also at a negative epsilon."""
        if epsilon - float(self.epsilons[0]) > EXPONENT:
            # It is no larger at a larger epsilon.
            epsilon = float(self.epsilons[0]) + EXPONENT
        # `e^epsilon w` at w = 0 and at the points, rising.
        grown = np.concatenate([[0.0], np.exp(epsilon - self.epsilons[::-1])])
        values = (self.weights - grown[:, None] * self.others).max(axis=1)
        if values[-1] > 0:
            return 1.0
        values = np.maximum(values, 0.0)
        slopes = np.append(np.diff(values) / np.diff(grown), 0.0)
        shares = np.maximum(np.diff(slopes), 0.0) * grown[1:]
        total = float(shares @ self.deltas[::-1])
        return min(1.0, total * (1 + _CHORDS_ROUND_UP))

    def epsilon(self, delta: float) -> float:
        """Returns an upper bound on epsilon; `inf` if it knows of none."""

        def is_enough(epsilon: float) -> bool:
            return self.delta(epsilon) <= delta

        high = float(self.epsilons[-1]) + _LEAST_END
        while not is_enough(high):
            high *= 2
            if high > 4 * EXPONENT:
                return math.inf
        if is_enough(0.0):
            return 0.0
        return last_true(is_enough, high, 0.0, share=_PRECISION)


def decade(delta: float) -> int:
    """Returns the largest `k` such that `delta` shares the profile of `10^k`.

    Few numbers in (0, 1) have profiles of their own.
    """
    power = math.floor(math.log10(max(delta, _LEAST_DELTA)))
    return power - power % _DECADES


def in_pairs(
    rounds: Sequence[CountedMechanism],
    accountant: BoundForOneRecord,
    delta: float,
) -> tuple[tuple[CountedMechanism, ...], float] | None:
    """Returns rounds that dominate, with a `ProfilePair` for each search.

    They are good next to a delta, to which the chance that is returned must be
    added. None if the trials, which `accountant` bounds, are not private
    enough.
    """
    searches = sum(n for each, n in rounds if isinstance(each, Selected))
    found, infinite = [], 0.0
    for mechanism, count in rounds:
        if not isinstance(mechanism, Selected):
            found.append(CountedMechanism(mechanism, count))
            continue
        pair = _pair(mechanism, accountant, decade(delta / searches))
        if not pair:
            return None
        found.append(CountedMechanism(pair[0], count))
        infinite += count * pair[1] * (1 + _ROUND_UP)
    return tuple(found), infinite


def one_trial_each(
    rounds: Sequence[CountedMechanism],
) -> list[tuple[CountedMechanism, ...]]:
    """Returns what searches reveal whose scores are constant: one trial.

    Each of the rounds is a lower bound, one for each plan.
    """
    searches = [each for each, _ in rounds if isinstance(each, Selected)]
    alternatives = []
    for plan in range(max(len(each.plans) for each in searches)):
        found: Counter[Mechanism] = Counter()
        for mechanism, count in rounds:
            if isinstance(mechanism, Selected):
                trial = mechanism.plans[plan % len(mechanism.plans)]
                for each, times in trial:
                    if not isinstance(each, SLACK):
                        found[each] += count * times
            else:
                found[mechanism] += count
        alternatives.append(in_order(found))
    return alternatives


def profile_pair(
    of_search: SearchProfile, beyond: float
) -> tuple[ProfilePair, float] | None:
    """Returns a pair of distributions that dominates a search.

    The lower convex hull of bounds on the profile at some `y = e^epsilon` lies
    above the profile, which is convex in `y`. The hull is the profile of the
    pair. By symmetry, `delta` at `y` bounds it by
    `(2 delta + y - 1) / (y + 1)` at 1.

    At the last point delta is `beyond`. The chance of an infinite
    loss, which is returned too, must be added to delta. None if there is no
    such pair.
    """
    end = of_search.epsilon(max(beyond, _LEAST_DELTA))
    if end > EXPONENT:
        return None
    epsilons = np.linspace(0.0, max(end, _LEAST_END), _PAIR_POINTS + 1)
    values = np.array([of_search.delta(float(each)) for each in epsilons])
    excess = np.expm1(epsilons)
    values[0] = ((2 * values + excess) / (excess + 2)).min() * (1 + _ROUND_UP)
    infinite = float(values[-1])
    if infinite >= 1:
        return None
    corners = _hull(excess, values)
    excess, values = excess[corners], values[corners]
    slopes = np.append(np.diff(values) / np.diff(excess), 0.0)
    # The masses of positive losses, under Q and under P. The pair has their
    # mirror image as well.
    under_q = np.maximum(np.diff(slopes), 0.0)
    under_p = under_q * (excess[1:] + 1)
    left = 1 - infinite
    zero = max(left - float(under_q.sum() + under_p.sum()), 0.0)
    losses = np.log1p(excess[1:])
    all_losses = np.concatenate([-losses[::-1], [0.0], losses])
    masses = np.concatenate([under_p[::-1], [zero], under_q]) / left
    some = masses > 0
    found = ProfilePair(
        tuple(all_losses[some].tolist()), tuple(masses[some].tolist())
    )
    return found, infinite


@functools.lru_cache(maxsize=64)
def _pair(
    search: Selected, accountant: BoundForOneRecord, power: int
) -> tuple[ProfilePair, float] | None:
    beyond = _PAIR_SHARE * 10.0**power
    found = profile(search, accountant, decade(beyond))
    return profile_pair(found, beyond) if found else None


@functools.lru_cache(maxsize=64)
def profile(
    search: Selected, accountant: BoundForOneRecord, power: int
) -> SearchProfile | None:
    """Returns the profile of a search, good next to a `decade` of delta.

    It is None if the trials, which `accountant` bounds, are not private enough.
    """
    trials = [UnitGroup(accountant, p, search.records) for p in search.plans]
    scale, log_weight = _weight_of(search.law)
    each = 10.0**power / search.law.largest_mean
    # It must also be small beside the chances at which the law changes.
    shares = [_SHARES[0] * min(each, 1 / scale), *(s * each for s in _SHARES)]
    end = math.inf
    for left in shares:
        end = max(trial.epsilon(left) for trial in trials)
        if end < EXPONENT:
            break
    else:
        return None
    positive = np.linspace(0.0, max(end, _LEAST_END), _POINTS + 1)
    epsilons, deltas = _both_signs(positive, _deltas(trials, positive))
    near = _NEAR / scale
    places = np.concatenate(
        [
            [0.0],
            np.geomspace(min(_LEAST_PLACE, near), near, _FAR_PLACES)[:-1],
            np.geomspace(near, 1.0, _PLACES),
        ]
    )
    lines = np.exp(epsilons)[:, None] * places + deltas[:, None]
    powers = np.minimum(lines.min(axis=0) * (1 + _ROUND_UP), 1.0)
    mean = search.law.largest_mean
    weights = mean * np.exp(log_weight(places[:-1]))
    others = mean * np.exp(log_weight(powers[1:]))
    return SearchProfile(
        epsilons,
        deltas,
        weights * (1 + _ROUND_UP),
        others * (1 - _ROUND_UP),
    )


def _deltas(trials: Sequence[UnitGroup], epsilons: Array) -> Array:
    """Returns upper bounds on the largest delta of some trials.

    Where delta is large it takes long, and matters little: from there on it is
    the chord up to 1 at epsilon 0, since a profile is convex in `e^epsilon`.
    The epsilons rise from 0.
    """
    found = np.empty_like(epsilons)
    profiles = [trial.profile() for trial in trials]
    for i in reversed(range(epsilons.size)):
        at = float(epsilons[i])
        found[i] = max(profile(at) for profile in profiles)
        if found[i] > _LARGE and i:
            shares = np.expm1(epsilons[:i]) / math.expm1(at)
            found[:i] = 1 - shares * (1 - found[i])
            found[:i] *= 1 + _ROUND_UP
            break
    return np.minimum(found, 1.0)


def _weight_of(
    law: TruncatedNegativeBinomial,
) -> tuple[float, Callable[[Array], Array]]:
    """Returns the log of `phi'(1 - x) / phi'(1)` of a law.

    And how many times it must be stretched to change by about 1 between 0 and
    1.
    """
    ratio, power = (1 - law.gamma) / law.gamma, law.shape + 1
    return max(ratio * max(power, 1.0), 1.0), lambda x: np.asarray(
        -power * np.log1p(ratio * x)
    )


def _both_signs(positive: Array, deltas: Array) -> tuple[Array, Array]:
    """Returns epsilons of both signs, and bounds on delta at them.

    The divergence of `Q` from `P` at `epsilon` is that of `P` from `Q` at
    `-epsilon` times `e^epsilon`, and `1 - e^epsilon` less. Both are bounded.
    """
    other = -np.expm1(-positive) + np.exp(-positive) * deltas
    other = other * (1 + _ROUND_UP)
    epsilons = np.concatenate([-positive[:0:-1], positive])
    return epsilons, np.minimum(np.concatenate([other[:0:-1], deltas]), 1.0)


def _hull(x: Array, y: Array) -> list[int]:
    """Returns the corners of the lower convex hull of points, `x` rising."""
    corners: list[int] = []
    for i in range(len(x)):
        while len(corners) > 1:
            j, k = corners[-2], corners[-1]
            # Whether the last corner is on or above the chord.
            if (y[k] - y[j]) * (x[i] - x[k]) < (y[i] - y[k]) * (x[k] - x[j]):
                break
            corners.pop()
        corners.append(i)
    return corners
