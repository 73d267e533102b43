"""The guarantee of a ledger for a group of records together."""

import dataclasses
import math
from typing import NamedTuple

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant, check_delta
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    DiscreteGaussian,
    Exposure,
    Gaussian,
    Mechanism,
    SampledGaussian,
    SampledGaussianGroup,
)
from keras_dp.accountants.normalize.rounds import LedgerLike
from keras_dp.accountants.replay import replayed
from keras_dp.accountants.roots import least_safe
from keras_dp.accountants.slack import least_epsilon, split

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


class GroupPrivacy(NamedTuple):
    """A guarantee to a group.

    Attributes:
        epsilon: An upper bound, `inf` if there is none.
        delta: An upper bound, 1 if there is none.
        is_k_fold_pair: Whether it was computed from the dominating pair of the
            group; if not, by the textbook bound.
        neighbours: The adjacency relation of one record.
    """

    epsilon: float
    delta: float
    is_k_fold_pair: bool
    neighbours: Neighbours


def group_epsilon(
    ledger: LedgerLike,
    *,
    group_size: int,
    delta: float,
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
) -> GroupPrivacy:
    """Returns the epsilon of a group of records, an upper bound.

    Guarantee: two data sets that differ in `group_size` records as
    `neighbours` says of one are told apart with at most this epsilon, if
    `accountant.is_bound`. Where every round has a dominating pair for the
    group that the accountant has a bound for, the result is that of the pair:

    | Round | Pair |
    | --- | --- |
    | Gaussian sums that nothing amplifies, discrete ones, trees | `z / k` |
    | Gaussian sums, Poisson sampling, records there or not | binomial |
    | thresholds, beside these | `Exposure` of the group |
    | other | none |

    The binomial pair is that of `SampledGaussianGroup`. Where there is none,
    the textbook bound is taken: if one record is `(e, d)`-private, a group is
    `(k e, d (1 + e^e + ... + e^((k-1) e)))`-private. The result is the least
    of these epsilons for the given delta.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).
        group_size: `k` >= 1.
        delta: In [0, 1].
        accountant: The tightest that can replay the ledger by default.
        neighbours: The adjacency relation; by default the strongest that
            all rounds support.

    Raises:
        UnsupportedEventError: The accountant has no bound for a round.

    Source: Vadhan (2017), The Complexity of Differential Privacy, Lemma 2.2;
    binomial pairs: Choquette-Choo, Ganesh, Steinke, Thakurta (2023),
    arXiv:2310.15526v2.

    >>> from keras_dp.accountants.analytic_gaussian import AnalyticGaussian
    >>> from keras_dp.ledger import FullDataset, GaussianSum, Round
    >>> release = Round(FullDataset(), (GaussianSum("all", 1.0, 4.0),))
    >>> found = group_epsilon(
    ...     [(release, 1)], group_size=4, delta=1e-5,
    ...     accountant=AnalyticGaussian(),
    ... )
    >>> round(found.epsilon, 3), found.is_k_fold_pair
    (4.377, True)
    """
    _check.integer_at_least(1, group_size=group_size)
    check_delta(delta)
    group = Group(*replayed(ledger, accountant, neighbours), group_size)
    return GroupPrivacy(
        group.epsilon_of(delta), float(delta), group.is_pair, group.neighbours
    )


def group_delta(
    ledger: LedgerLike,
    *,
    group_size: int,
    epsilon: float,
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
) -> GroupPrivacy:
    """Returns the delta of a group of records, an upper bound.

    Guarantee: as `group_epsilon`.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).
        group_size: `k` >= 1.
        epsilon: Finite and >= 0.
        accountant: The tightest that can replay the ledger by default.
        neighbours: The adjacency relation; by default the strongest that
            all rounds support.

    Raises:
        UnsupportedEventError: The accountant has no bound for a round.
    """
    _check.integer_at_least(1, group_size=group_size)
    _check.finite_non_negative(epsilon=epsilon)
    group = Group(*replayed(ledger, accountant, neighbours), group_size)
    return GroupPrivacy(
        float(epsilon),
        group.delta_of(epsilon),
        group.is_pair,
        group.neighbours,
    )


class Group:
    """A ledger for a group of records, replayed once for many questions.

    Attributes:
        neighbours: The adjacency relation of one record.
        is_pair: Whether answers are of the dominating pair of the group; if
            not, they are the textbook bound.
    """

    def __init__(
        self,
        accountant: Accountant,
        neighbours: Neighbours,
        rounds: tuple[CountedMechanism, ...],
        group_size: int,
    ) -> None:
        """Takes what `replayed` returns, and the size of the group, >= 1."""
        _check.integer_at_least(1, group_size=group_size)
        self.neighbours = neighbours
        self._accountant, self._rounds = accountant, rounds
        self._size = group_size
        pair = k_fold(rounds, group_size)
        self.is_pair = pair is not None and accountant.supports(pair)
        if self.is_pair and pair is not None:
            self._rounds = pair

    def epsilon_of(self, delta: float) -> float:
        """Returns the epsilon of the group, as `group_epsilon` does."""
        if self.is_pair:
            return self._accountant.epsilon_of(self._rounds, delta)
        return _textbook_epsilon(
            self._accountant, self._rounds, self._size, float(delta)
        )

    def delta_of(self, epsilon: float) -> float:
        """Returns the delta of the group, as `group_delta` does."""
        if self.is_pair:
            return self._accountant.delta_of(self._rounds, epsilon)
        share = float(epsilon) / self._size
        log_delta = _log_delta(
            self._accountant, self._rounds, self._size, share
        )
        return min(1.0, max(math.exp(min(log_delta, 0.0)), _LEAST))


def k_fold(
    rounds: tuple[CountedMechanism, ...], group_size: int
) -> tuple[CountedMechanism, ...] | None:
    """Returns what the rounds are for a group; None if that is not known."""
    if group_size == 1:
        return rounds
    found = []
    for mechanism, count in rounds:
        each = _k_fold(mechanism, group_size)
        if each is None:
            return None
        found.append(CountedMechanism(each, count))
    return tuple(found)


def _k_fold(mechanism: Mechanism, group_size: int) -> Mechanism | None:
    z = mechanism.noise_multiplier
    if isinstance(mechanism, Gaussian | DiscreteGaussian):
        # `k` records move a sum, and the nodes of a tree, `k` times as far.
        return type(mechanism)(math.nextafter(z / group_size, 0.0))
    if isinstance(mechanism, Exposure):
        return dataclasses.replace(mechanism, group_size=group_size)
    if isinstance(mechanism, SampledGaussian):
        return SampledGaussianGroup(
            z, mechanism.sampling_probability, group_size
        )
    return None


def _textbook_epsilon(
    accountant: Accountant,
    rounds: tuple[CountedMechanism, ...],
    group_size: int,
    delta: float,
) -> float:
    """Returns `k` times the least epsilon of one record that suffices."""
    if delta in (0, 1):
        return accountant.epsilon_of(rounds, delta)
    slack, rest = split(rounds)
    if slack:
        total = slack

        def epsilon_of(left: float) -> float:
            found = _textbook_epsilon(accountant, rest, group_size, left)
            return found / group_size

        def added(share: float) -> float:
            growth = _log_growth(group_size, share)
            if growth > _LARGEST_EXPONENT:
                return math.inf
            return total.at(share) * math.exp(growth) * (1 + 1e-12)

        return group_size * least_epsilon(delta, added, epsilon_of)
    log_delta = math.log(delta)

    def excess(share: float) -> float:
        found = _log_delta(accountant, rounds, group_size, share)
        return found - log_delta

    # The group's delta is at least `k` times that of one record.
    low = high = accountant.epsilon_of(rounds, delta / group_size)
    if high < math.inf and excess(high) <= 0:
        return group_size * high
    while high == math.inf or excess(high) > 0:
        # No accountant reports less than `_LEAST`, and the sum grows.
        if (
            high == math.inf
            or accountant.delta_of(rounds, high) <= _LEAST
            or _log_growth(group_size, high) + math.log(_LEAST) > log_delta
        ):
            return math.inf
        low, high = high, _GROWTH * max(high, _NEAREST)
    share = least_safe(excess, low, high, nearest=_NEAREST * high)
    return group_size * share


def _log_delta(
    accountant: Accountant,
    rounds: tuple[CountedMechanism, ...],
    group_size: int,
    share: float,
) -> float:
    """Returns the log of delta of a group at `group_size * share`.

    Rounded up.
    """
    delta = accountant.delta_of(rounds, share)
    if delta == 0:
        return -math.inf
    growth = _log_growth(group_size, share)
    size = growth - math.log(delta)
    return math.log(delta) + growth + _ROUND_UP * size


def _log_growth(group_size: int, share: float) -> float:
    """Returns the log of `1 + e^share + ... + e^((k-1) share)`."""
    if share <= 0:
        return math.log(group_size)
    return (group_size - 1) * share + math.log(
        math.expm1(-group_size * share) / math.expm1(-share)
    )
