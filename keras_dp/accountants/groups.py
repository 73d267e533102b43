"""The guarantee of rounds for several records together.

A unit with several records, and several units, are a group of records.
"""

import dataclasses
import math
from collections.abc import Callable, Hashable
from typing import Protocol, TypeAlias

from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Exposure,
    Gaussian,
    Mechanism,
    SampledGaussian,
    SampledGaussianGroup,
    Selected,
)
from keras_dp.accountants.roots import least_safe
from keras_dp.accountants.slack import split, without_slack

# How much further each step goes in search of an epsilon that suffices.
_GROWTH = 1.5
# Relative precision of epsilon.
_NEAREST = 1e-9
# Relative precision of the two terms of a logarithm.
_ROUND_UP = 1e-14
# Accountants report no smaller delta, however large epsilon is.
_LEAST = math.ulp(0.0)
# exp() of it is finite.
_LARGEST_EXPONENT = 700.0
# The first step beyond a guess, as a share of it; each further step is twice as
# long.
_STEP = 1e-9
_MOST_GUESSES = 60


Profile: TypeAlias = Callable[[float], float]


class BoundForOneRecord(Hashable, Protocol):
    """The part of an accountant that groups ask: bounds for one record."""

    def supports(self, rounds: tuple[CountedMechanism, ...]) -> bool:
        """Returns whether there is a bound for every mechanism."""

    def epsilon_of(
        self, rounds: tuple[CountedMechanism, ...], delta: float
    ) -> float:
        """Returns the bound on epsilon for one record."""

    def profile_of(self, rounds: tuple[CountedMechanism, ...]) -> Profile:
        """Returns the bound on delta for one record, a function of epsilon."""


class UnitGroup:
    """The rounds of a ledger for a group of records, for many questions.

    Guarantee: two data sets that differ in `records` records, each as the
    adjacency relation says of one, are told apart with at most the epsilon and
    delta of the answers, if the accountant's numbers are bounds. Where every
    round has a dominating pair for the group that the accountant has a bound
    for, the answers are those of the pair:

    | Round | Pair |
    | --- | --- |
    | Gaussian sums that nothing amplifies | `z / k` |
    | Gaussian sums, Poisson sampling, records there or not | binomial |
    | the same, of classes that take turns | none |
    | thresholds, beside these | `Exposure` of the group |
    | a search | that of its trials for the group, or the bound below |
    | other | none |

    The binomial pair is that of `SampledGaussianGroup`. Where there is none,
    the textbook bound is taken: if one record is `(e, d)`-private, a group is
    `(k e, d (1 + e^e + ... + e^((k-1) e)))`-private. The result is the least
    of these epsilons for the given delta.

    Attributes:
        accountant: The accountant that bounds the rounds.
        records: How many records the group has, `k`.
        is_pair: Whether answers are of the dominating pair of the group; if
            not, they are the textbook bound.
        rounds: The dominating pair of the group, or the mechanisms of one
            record.

    Source: Vadhan (2017), The Complexity of Differential Privacy, Lemma 2.2;
    binomial pairs: Choquette-Choo, Ganesh, Steinke, Thakurta (2023),
    arXiv:2310.15526v2.
    """

    def __init__(
        self,
        accountant: BoundForOneRecord,
        rounds: tuple[CountedMechanism, ...],
        records: int,
    ) -> None:
        self.accountant, self.records = accountant, records
        pair = k_fold(rounds, records)
        self.is_pair = pair is not None and (
            pair is rounds or accountant.supports(pair)
        )
        self.rounds = pair if self.is_pair and pair is not None else rounds

    def epsilon(self, delta: float) -> float:
        """Returns an upper bound on epsilon; `inf` if no finite one holds."""
        if self.is_pair:
            return self.accountant.epsilon_of(self.rounds, delta)
        return _textbook_epsilon(
            self.accountant, self.rounds, self.records, float(delta)
        )

    def delta(self, epsilon: float) -> float:
        """Returns an upper bound on delta; 1 if no smaller one holds."""
        return self.profile()(float(epsilon))

    def profile(self) -> Profile:
        """Returns `delta` as a function of epsilon, for many epsilons."""
        of_one = self.accountant.profile_of(self.rounds)
        if self.is_pair:
            return of_one

        def grown(epsilon: float) -> float:
            share = epsilon / self.records
            log_delta = _log_delta(of_one(share), self.records, share)
            return min(1.0, max(math.exp(min(log_delta, 0.0)), _LEAST))

        return grown


def k_fold(
    rounds: tuple[CountedMechanism, ...], records: int
) -> tuple[CountedMechanism, ...] | None:
    """Returns what the rounds are for a group; None if that is not known."""
    if records == 1:
        return rounds
    found = []
    for mechanism, count in rounds:
        each = _k_fold(mechanism, records)
        if each is None:
            return None
        found.append(CountedMechanism(each, count))
    return tuple(found)


def _k_fold(mechanism: Mechanism, records: int) -> Mechanism | None:
    z = mechanism.noise_multiplier
    if isinstance(mechanism, Gaussian):
        # `k` records move a sum `k` times as far. An attack on one of them is
        # an attack on all.
        less = math.nextafter(z / records, 0.0)
        return dataclasses.replace(mechanism, noise_multiplier=less)
    if isinstance(mechanism, Exposure):
        return dataclasses.replace(mechanism, records=records)
    if isinstance(mechanism, SampledGaussian) and mechanism.samples_all:
        return SampledGaussianGroup(z, mechanism.sampling_probability, records)
    if isinstance(mechanism, Selected):
        plans = [k_fold(plan, records) for plan in mechanism.plans]
        known = tuple(plan for plan in plans if plan is not None)
        if len(known) == len(plans):
            return Selected(known, mechanism.law)
        # Its trials take the textbook bound, and not the search.
        return dataclasses.replace(mechanism, records=records)
    return None


def _textbook_epsilon(
    accountant: BoundForOneRecord,
    rounds: tuple[CountedMechanism, ...],
    records: int,
    delta: float,
) -> float:
    """Returns `k` times the least epsilon of one record that suffices."""
    if delta in (0, 1):
        return accountant.epsilon_of(rounds, delta)
    slack, rest = split(rounds)
    if slack:

        def epsilon_of(left: float) -> float:
            found = _textbook_epsilon(accountant, rest, records, left)
            return found / records

        def added(share: float) -> float:
            growth = _log_growth(records, share)
            if growth > _LARGEST_EXPONENT:
                return math.inf
            return slack * math.exp(growth) * (1 + 1e-12)

        return records * _least_epsilon(delta, added, epsilon_of)
    log_delta, of_one = math.log(delta), accountant.profile_of(rounds)

    def excess(share: float) -> float:
        return _log_delta(of_one(share), records, share) - log_delta

    # The group's delta is at least `k` times that of one record.
    low = high = accountant.epsilon_of(rounds, delta / records)
    if high < math.inf and excess(high) <= 0:
        return records * high
    while high == math.inf or excess(high) > 0:
        # No accountant reports less than `_LEAST`, and the sum grows.
        if (
            high == math.inf
            or of_one(high) <= _LEAST
            or _log_growth(records, high) + math.log(_LEAST) > log_delta
        ):
            return math.inf
        low, high = high, _GROWTH * max(high, _NEAREST)
    share = least_safe(excess, low, high, nearest=_NEAREST * high)
    return records * share


def _least_epsilon(
    delta: float,
    added: Callable[[float], float],
    epsilon_of: Callable[[float], float],
) -> float:
    """Returns the epsilon of a ledger from which slack takes a part of delta.

    Guarantee: the result `e` satisfies `epsilon_of(delta - added(e)) <= e`,
    unless it is infinite. `epsilon_of` is that of the rounds without slack, and
    `added`, which does not fall, the part of delta that is taken.
    """
    guess, paid = 0.0, added(0.0)
    step = _STEP
    for _ in range(_MOST_GUESSES):
        left = without_slack(delta, paid)
        if not left > 0:
            return math.inf
        found = epsilon_of(left)
        if found <= guess or added(found) <= paid:
            return found
        # A little further, so that the next one can be enough.
        guess = found * (1 + step)
        paid, step = added(guess), 2 * step
    return math.inf


def _log_delta(delta: float, records: int, share: float) -> float:
    """Returns the log of delta of a group at `records * share`, rounded up.

    `delta` is that of one record at `share`.
    """
    if delta == 0:
        return -math.inf
    growth = _log_growth(records, share)
    size = growth - math.log(delta)
    return math.log(delta) + growth + _ROUND_UP * size


def _log_growth(records: int, share: float) -> float:
    """Returns the log of `1 + e^share + ... + e^((k-1) share)`."""
    if share <= 0:
        return math.log(records)
    return (records - 1) * share + math.log(
        math.expm1(-records * share) / math.expm1(-share)
    )
