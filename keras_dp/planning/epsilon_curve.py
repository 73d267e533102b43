"""Computes epsilon after several numbers of rounds, in one pass."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant, check_delta
from keras_dp.accountants.arrays import Array
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.normalize.normalize import RoundsTogether
from keras_dp.accountants.normalize.rounds import LedgerLike
from keras_dp.accountants.replay import replay_of
from keras_dp.ledger import Round


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
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
    units: int = 1,
) -> EpsilonCurve:
    """Returns epsilon after some numbers of rounds, in the ledger's order.

    Guarantee: the first `rounds[i]` rounds of the ledger are
    `(epsilons[i], delta)`-private, if `accountant.is_bound`. A bound for more
    rounds is also a bound for fewer rounds. So if the accountant reports less
    after more rounds, the curve has the lower value at both. The last value is
    the result of `accountant.epsilon` for the whole ledger. An epoch of
    disjoint batches or a tree counts with its rounds up to each point.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).
        delta: In [0, 1].
        points: The largest number of points, >= 1.
        accountant: By default, the tightest that can replay the ledger.
        neighbours: The adjacency relation. By default, the strongest that
            all rounds support.
        units: The number of units that epsilon protects together, >= 1. A unit
            has `rows_per_unit` records if `ledger` says so, else one.

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
    _check.integer_at_least(1, units=units)
    replay = replay_of(ledger)
    relation = replay.relation(neighbours)
    by = accountant or replay.accountant(relation)
    ends = _ends(sum(count for _, count in replay.rounds), points)
    whole = replay.normalized(relation)
    together = RoundsTogether(relation)
    epsilons = np.zeros(ends.size)
    segments = _segments(replay.rounds, ends)
    for index, segment in zip(range(ends.size - 1), segments, strict=False):
        for each, count in segment.items():
            together.add(each, count)
        rounds = dataclasses.replace(whole, mechanisms=together.mechanisms())
        epsilons[index] = by.epsilon(rounds, delta=delta, units=units)
    epsilons[-1:] = replay.epsilon(
        by, delta=delta, neighbours=relation, units=units
    )
    # A bound for more rounds bounds the rounds before.
    nondecreasing = np.minimum.accumulate(epsilons[::-1])[::-1]
    return EpsilonCurve(ends, nondecreasing, relation)


def _ends(total: int, points: int) -> NDArray[np.int64]:
    """Returns increasing numbers of rounds. The last is the total."""
    points = min(points, total)
    found = [total * (index + 1) // points for index in range(points)]
    return np.array(found, np.int64)


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
