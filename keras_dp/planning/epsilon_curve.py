"""Epsilon as it grew: after each of some numbers of rounds, in one pass."""

import dataclasses
import decimal
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant, check_delta
from keras_dp.accountants.arrays import Array
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Mechanism,
    OneOf,
)
from keras_dp.accountants.normalize.normalize import Neighbours, normalize
from keras_dp.accountants.normalize.rounds import LedgerLike
from keras_dp.accountants.replay import (
    chosen_accountant,
    materialized,
)
from keras_dp.ledger import (
    DiscreteGaussianSum,
    DisjointBatches,
    Round,
    TreeSum,
)

# With more of them than that, noise multipliers are rounded down for all
# points but the last, by 1e-4 at most: no plot shows it.
_MOST_MECHANISMS = 1000
_DIGITS = decimal.Context(prec=4, rounding=decimal.ROUND_DOWN)


class EpsilonCurve(NamedTuple):
    """What the first rounds of a ledger cost.

    Attributes:
        rounds: Numbers of rounds, rising; the last is all. Shape `[n]`.
        epsilons: Upper bounds, nondecreasing. Shape `[n]`.
    """

    rounds: NDArray[np.int64]
    epsilons: Array


def epsilon_curve(
    ledger: LedgerLike,
    *,
    delta: float,
    points: int = 100,
    spacing: Literal["even", "geometric"] = "even",
    accountant: Accountant | None = None,
    neighbours: Neighbours = "add_or_remove_one",
) -> EpsilonCurve:
    """Returns epsilon after some numbers of rounds, in the ledger's order.

    Guarantee: the first `rounds[i]` rounds of the ledger cost at most
    `epsilons[i]` at `delta`, if `accountant.is_bound`: what was released later
    never lowers it, and where an accountant says so its later word holds. The
    last value is what `accountant.epsilon` says of the whole ledger. What
    several rounds cost together, as epochs of disjoint batches and trees do,
    is what those of them that have taken place cost.

    The ledger is read once: each round is normalized once, however many points
    there are. Where there are more than 1000 different noise multipliers they
    are rounded down to four digits, which makes a bound, except at the end.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).
        delta: In [0, 1].
        points: The most that are wanted, >= 1.
        spacing: Between the numbers of rounds.
        accountant: The tightest that can replay the ledger by default.
        neighbours: See `normalization.normalize`.

    Returns:
        Fewer points if there are fewer rounds; none for an empty ledger.

    Raises:
        UnsupportedEventError: The accountant has no bound for a round.

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
            f"Received: spacing={spacing!r}."
        )
    pairs = materialized(ledger)
    kinds = [(each, 1) for each in dict.fromkeys(each for each, _ in pairs)]
    accountant = chosen_accountant(accountant, kinds, neighbours)
    ends = _ends(sum(count for _, count in pairs), points, spacing)
    prefix = _Prefix(neighbours)
    epsilons = np.zeros(ends.size)
    for index, segment in enumerate(_segments(pairs, ends)):
        prefix.add(segment)
        rounds = prefix.rounds(is_last=index == ends.size - 1)
        accountant.check_priced(rounds, neighbours)
        epsilons[index] = accountant.epsilon_of(rounds, delta)
    # Less than before is what the accountant could have said before.
    nondecreasing = np.minimum.accumulate(epsilons[::-1])[::-1]
    return EpsilonCurve(ends, nondecreasing)


def _ends(
    total: int, points: int, spacing: Literal["even", "geometric"]
) -> NDArray[np.int64]:
    """Returns some numbers of rounds, the last of them all."""
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
    """Yields the rounds between two points, equal ones counted together."""
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


class _Kept(NamedTuple):
    """The most expensive round of its kind in an epoch."""

    round: Round
    noise_multiplier: float


class _Prefix:
    """The first rounds of a ledger, normalized as they come.

    Rounds cost what they cost alone, and add, unless they are part of an epoch
    of disjoint batches or of a tree. Of an epoch only its most expensive round
    of each kind matters, and is kept. Trees, and epochs beside them, are
    normalized anew at each point: their rounds usually are the same one.
    """

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours
        self._alone: Counter[Mechanism] = Counter()
        self._epochs: dict[str, dict[object, _Kept]] = {}
        self._epoch_costs: dict[str, tuple[CountedMechanism, ...]] = {}
        self._together: Counter[Round] = Counter()
        self._has_trees = False

    def add(self, segment: dict[Round, int]) -> None:
        """Adds rounds that follow."""
        alone: dict[Round, int] = {}
        changed = set()
        for each, count in segment.items():
            is_tree = any(isinstance(query, TreeSum) for query in each.queries)
            self._has_trees |= is_tree
            sampling = each.sampling
            if is_tree:
                self._together[each] += count
            elif isinstance(sampling, DisjointBatches):
                self._add_to_epoch(sampling.epoch_id, each)
                changed.add(sampling.epoch_id)
            else:
                alone[each] = count
        for mechanism, count in self._normalized(alone.items()):
            self._alone[mechanism] += count
        for epoch in changed:
            self._epoch_costs[epoch] = self._normalized(
                self._representatives(epoch)
            )

    def rounds(self, *, is_last: bool) -> tuple[CountedMechanism, ...]:
        """Returns what `normalize` says of all rounds so far, or a bit more.

        Unless it is the last time, very many mechanisms become fewer ones.
        """
        counts = Counter(self._alone)
        if self._has_trees:
            together = [*self._together.items()]
            for epoch in self._epochs:
                together += self._representatives(epoch)
            costs = [self._normalized(together)]
        else:
            costs = [*self._epoch_costs.values()]
        for cost in costs:
            for mechanism, count in cost:
                counts[mechanism] += count
        if not is_last and len(counts) > _MOST_MECHANISMS:
            counts = _merged(counts)
        return tuple(
            CountedMechanism(mechanism, counts[mechanism])
            for mechanism in sorted(counts, key=_text)
        )

    def _add_to_epoch(self, epoch: str, each: Round) -> None:
        kept = self._epochs.setdefault(epoch, {})
        for mechanism, _ in self._normalized([(each, 1)]):
            kind = (
                type(mechanism),
                getattr(mechanism, "encodings", ()),
                any(isinstance(q, DiscreteGaussianSum) for q in each.queries),
            )
            z = mechanism.noise_multiplier
            if kind not in kept or z < kept[kind].noise_multiplier:
                kept[kind] = _Kept(each, z)

    def _representatives(self, epoch: str) -> list[tuple[Round, int]]:
        return [(kept.round, 1) for kept in self._epochs[epoch].values()]

    def _normalized(
        self, pairs: Iterable[tuple[Round, int]]
    ) -> tuple[CountedMechanism, ...]:
        return normalize(pairs, self._neighbours)


def _merged(counts: Counter[Mechanism]) -> Counter[Mechanism]:
    """Returns mechanisms with less noise, many of which are the same."""
    merged: Counter[Mechanism] = Counter()
    for mechanism, count in counts.items():
        z = mechanism.noise_multiplier
        if not isinstance(mechanism, OneOf) and 0 < z < math.inf:
            less = float(_DIGITS.create_decimal_from_float(z))
            mechanism = dataclasses.replace(mechanism, noise_multiplier=less)
        merged[mechanism] += count
    return merged


def _text(mechanism: Mechanism) -> tuple[str, str]:
    """The order of `normalize`, on which sums depend in their last digit."""
    return repr(mechanism), repr(dataclasses.astuple(mechanism))
