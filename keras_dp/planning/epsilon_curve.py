"""Computes epsilon after several numbers of rounds, in one pass."""

import dataclasses
import decimal
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant, check_delta
from keras_dp.accountants.arrays import Array
from keras_dp.accountants.attacks.group_privacy import Group
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.normalize.mechanisms import SLACK, Mechanism, OneOf
from keras_dp.accountants.normalize.normalize import RoundsTogether, normalized
from keras_dp.accountants.normalize.normalized_rounds import (
    NormalizedRounds,
)
from keras_dp.accountants.normalize.rounds import (
    LedgerLike,
    counted_rounds,
    warn_of_units,
)
from keras_dp.accountants.replay import chosen
from keras_dp.ledger import Round

# Beyond this number, noise multipliers are rounded down for all points but the
# last. The relative change is below 1e-3, which is invisible in a plot.
_MOST_MECHANISMS = 1000
_DIGITS = decimal.Context(prec=4, rounding=decimal.ROUND_DOWN)


class EpsilonCurve(NamedTuple):
    """The epsilon of the first rounds of a ledger, for several numbers of them.

    Attributes:
        rounds: Increasing numbers of rounds, shape `[n]`. The last is the
            number of all rounds.
        epsilons: The epsilon after each number of rounds, nondecreasing, shape
            `[n]`.
        neighbours: The adjacency relation of all values.
    """

    rounds: NDArray[np.int64]
    epsilons: Array
    neighbours: Neighbours


def epsilon_curve(
    ledger: LedgerLike,
    *,
    delta: float,
    points: int = 100,
    spacing: Literal["even", "geometric"] = "even",
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
    group_size: int = 1,
) -> EpsilonCurve:
    """Returns epsilon after some numbers of rounds, in the ledger's order.

    Guarantee: the first `rounds[i]` rounds of the ledger are
    `(epsilons[i], delta)`-private, if `accountant.is_bound`. A bound for more
    rounds is also a bound for fewer rounds. So if the accountant reports less
    after more rounds, the curve has the lower value at both. The last value is
    the result of `group_epsilon` for the whole ledger. An epoch of disjoint
    batches or a tree counts with its rounds up to each point.

    If the ledger has more than 1000 different mechanisms, their noise
    multipliers are rounded down to four digits, at all points but the last. The
    values remain upper bounds.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).
        delta: In [0, 1].
        points: The largest number of points, >= 1.
        spacing: How the numbers of rounds are spaced: "even" or "geometric".
        accountant: By default, the tightest that can replay the ledger.
        neighbours: The adjacency relation. By default, the strongest that
            all rounds support.
        group_size: The number of records that epsilon protects together, >= 1.

    Returns:
        A curve. It has fewer points if there are fewer rounds or if points
            coincide, and no points for an empty ledger.

    Raises:
        UnsupportedEventError: The accountant has no bound for a round.
        ValueError: An argument is out of its range.

    >>> from keras_dp.accountants.rdp import RDP
    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> curve = epsilon_curve(
    ...     [(step, 10_000)], delta=1e-5, points=4, accountant=RDP()
    ... )
    >>> curve.rounds, curve.epsilons.round(2)
    (array([ 2500,  5000,  7500, 10000]), array([0.49, 0.71, 0.89, 1.04]))
    """
    check_delta(delta)
    _check.integer_at_least(1, points=points)
    if spacing not in ("even", "geometric"):
        raise ValueError(
            "`spacing` must be 'even' or 'geometric'. "
            f"Received: spacing={spacing!r}. Choose one of them."
        )
    warn_of_units(ledger, group_size)
    pairs = tuple(counted_rounds(ledger))
    kinds = [(each, 1) for each in dict.fromkeys(each for each, _ in pairs)]
    accountant, relation = chosen(kinds, accountant, neighbours)
    ends = _ends(sum(count for _, count in pairs), points, spacing)
    (found,) = _curves(
        pairs,
        ends,
        normalized(pairs, relation),
        [(accountant, None)],
        delta,
        group_size,
    )
    return found


def epsilon_curves(
    ledger: LedgerLike,
    whole: NormalizedRounds,
    *,
    delta: float,
    totals: Sequence[tuple[Accountant, float]],
    points: int,
    group_size: int,
) -> tuple[EpsilonCurve, ...]:
    """Returns the curves of several accountants, in one pass over a ledger.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).
        whole: The normalized rounds of the whole ledger.
        delta: In [0, 1].
        totals: Accountants, each with its epsilon for the whole ledger.
        points: The largest number of points, >= 1.
        group_size: The number of records that epsilon protects together, >= 1.
    """
    pairs = tuple(counted_rounds(ledger))
    ends = _ends(sum(count for _, count in pairs), points, "even")
    return _curves(pairs, ends, whole, totals, delta, group_size)


def _curves(
    pairs: tuple[tuple[Round, int], ...],
    ends: NDArray[np.int64],
    whole: NormalizedRounds,
    totals: Sequence[tuple[Accountant, float | None]],
    delta: float,
    group_size: int,
) -> tuple[EpsilonCurve, ...]:
    relation = whole.neighbours
    together = RoundsTogether(
        relation,
        _with_less_noise if len(whole.mechanisms) > _MOST_MECHANISMS else None,
    )
    epsilons = np.zeros((len(totals), ends.size))
    for index, segment in enumerate(_segments(pairs, ends)):
        is_last = index == ends.size - 1
        rounds = whole.mechanisms
        if not is_last:
            for each, count in segment.items():
                together.add(each, count)
            rounds = together.mechanisms()
        for row, (accountant, total) in enumerate(totals):
            if is_last and total is not None:
                epsilons[row, index] = total
                continue
            accountant.check_supported(rounds)
            group = Group(accountant, relation, rounds, group_size)
            epsilons[row, index] = group.epsilon_of(delta)
    # A bound for more rounds bounds the rounds before.
    nondecreasing = np.minimum.accumulate(epsilons[:, ::-1], axis=1)[:, ::-1]
    return tuple(EpsilonCurve(ends, each, relation) for each in nondecreasing)


def _ends(
    total: int, points: int, spacing: Literal["even", "geometric"]
) -> NDArray[np.int64]:
    """Returns increasing numbers of rounds. The last is the total."""
    if total == 0:
        return np.zeros(0, np.int64)
    points = min(points, total)
    if spacing == "even":
        found = {total * (index + 1) // points for index in range(points)}
    elif points == 1:
        found = {total}
    else:
        found = {*np.geomspace(1, total, points).astype(np.int64).tolist()}
    return np.array(sorted({*found, total}), np.int64)


def _segments(
    pairs: Iterable[tuple[Round, int]], ends: NDArray[np.int64]
) -> Iterator[dict[Round, int]]:
    """Yields the rounds between two points. Equal rounds are counted."""
    segment: defaultdict[Round, int] = defaultdict(int)
    position = 0
    remaining = iter(ends.tolist())
    end = next(remaining, 0)
    for each, count in pairs:
        left = count
        while left:
            part = min(left, end - position)
            segment[each] += part
            position, left = position + part, left - part
            if position == end:
                yield segment
                segment = defaultdict(int)
                end = next(remaining, 0)


def _with_less_noise(mechanism: Mechanism) -> Mechanism:
    """Returns a mechanism with slightly less noise that dominates this one."""
    z = mechanism.noise_multiplier
    if isinstance(mechanism, OneOf | SLACK) or not 0 < z < math.inf:
        return mechanism
    less = float(_DIGITS.create_decimal_from_float(z))
    return dataclasses.replace(mechanism, noise_multiplier=less)
