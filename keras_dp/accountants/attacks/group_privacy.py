"""What a ledger guarantees to a group of records together."""

import math
from typing import NamedTuple

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant, check_delta
from keras_dp.accountants.attacks.group_bound import (
    generic_delta,
    generic_epsilon,
)
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    DiscreteGaussian,
    Gaussian,
    Mechanism,
    SampledGaussian,
    SampledGaussianGroup,
)
from keras_dp.accountants.normalize.normalize import Neighbours
from keras_dp.accountants.normalize.rounds import LedgerLike
from keras_dp.accountants.replay import (
    replayed,
)


class GroupPrivacy(NamedTuple):
    """A guarantee to a group.

    Attributes:
        epsilon: An upper bound, `inf` if there is none.
        delta: An upper bound, 1 if there is none.
        is_k_fold_pair: Whether it was computed from the pair of laws that is
            the worst for the group; if not, by the generic bound.
    """

    epsilon: float
    delta: float
    is_k_fold_pair: bool


def group_epsilon(
    ledger: LedgerLike,
    *,
    group_size: int,
    delta: float,
    accountant: Accountant | None = None,
    neighbours: Neighbours = "add_or_remove_one",
) -> GroupPrivacy:
    """Returns the epsilon of a group of records, an upper bound.

    Guarantee: data sets of which one has `group_size` records more, or has
    them replaced (by zero), as `neighbours` says of one, are told apart with
    at most this epsilon, if `accountant.is_bound`. Where every round has a
    k-fold pair that the accountant can price the result is that of the pair:

    | Round | Pair |
    | --- | --- |
    | Gaussian sums that nothing amplifies, discrete ones, trees | `z / k` |
    | Gaussian sums, Poisson sampling, records there or not | binomial |
    | other | none |

    The binomial one is that of `SampledGaussianGroup`. Otherwise it is what
    follows from the accountant's bounds for one record and nothing else:
    `x -> T(...T(x))` bounds the true positive rates for the group if `T` does
    so for one record, which is the generic bound `(k e, d (1 + e^e + ... +
    e^((k-1) e)))` with another pair `(e, d)` for each record, the best ones.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).
        group_size: `k` >= 1.
        delta: In [0, 1].
        accountant: The tightest that can replay the ledger by default.
        neighbours: See `normalization.normalize`.

    Raises:
        UnsupportedEventError: The accountant has no bound for a round.

    Source: Dong, Roth, Su (2019), arXiv:1905.02383v3, Theorem 2.14; binomial
    pairs: Choquette-Choo, Ganesh, Steinke, Thakurta (2023),
    arXiv:2310.15526v2. We differ in composing supporting lines, not curves.

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
    accountant, rounds = replayed(ledger, accountant, neighbours)
    pair = k_fold(rounds, group_size)
    if pair is not None and accountant.can_price(pair):
        epsilon = accountant.epsilon_of(pair, delta)
        return GroupPrivacy(epsilon, float(delta), is_k_fold_pair=True)
    if delta in (0, 1):
        epsilon = accountant.epsilon_of(rounds, delta)
        return GroupPrivacy(epsilon, float(delta), is_k_fold_pair=False)
    epsilon = generic_epsilon(accountant, rounds, group_size, float(delta))
    return GroupPrivacy(epsilon, float(delta), is_k_fold_pair=False)


def group_delta(
    ledger: LedgerLike,
    *,
    group_size: int,
    epsilon: float,
    accountant: Accountant | None = None,
    neighbours: Neighbours = "add_or_remove_one",
) -> GroupPrivacy:
    """Returns the delta of a group of records, an upper bound.

    Guarantee: as `group_epsilon`.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).
        group_size: `k` >= 1.
        epsilon: Finite and >= 0.
        accountant: The tightest that can replay the ledger by default.
        neighbours: See `normalization.normalize`.

    Raises:
        UnsupportedEventError: The accountant has no bound for a round.
    """
    _check.integer_at_least(1, group_size=group_size)
    _check.finite_non_negative(epsilon=epsilon)
    accountant, rounds = replayed(ledger, accountant, neighbours)
    pair = k_fold(rounds, group_size)
    if pair is not None and accountant.can_price(pair):
        delta = accountant.delta_of(pair, epsilon)
        return GroupPrivacy(float(epsilon), delta, is_k_fold_pair=True)
    delta = generic_delta(accountant, rounds, group_size, float(epsilon))
    return GroupPrivacy(float(epsilon), delta, is_k_fold_pair=False)


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
    if isinstance(mechanism, SampledGaussian):
        return SampledGaussianGroup(
            z, mechanism.sampling_probability, group_size
        )
    return None
