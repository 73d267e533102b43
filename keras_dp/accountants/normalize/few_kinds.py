"""Some hundreds of kinds of rounds in the place of many more.

Accountants compute each kind of round by itself. A ledger can have 10^5 kinds,
which would take minutes. So similar kinds become one: for an upper bound, with
their least noise and their highest sampling probability; for a lower bound,
with their most noise and their lowest probability.

Guarantee: the rounds for the upper bound dominate the ledger, and the ledger
dominates the rounds for the lower bound. *Proof.* One round dominates another
of the same mechanism that has more noise or a lower probability: see
`mechanisms.SampledGaussian` and the other mechanisms of its file. Composition
keeps the order of its rounds.
"""

import dataclasses
import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.normalize.mechanisms import (
    UNREACHED,
    CountedMechanism,
    FixedSizeGaussian,
    FullOrNot,
    Gaussian,
    Mechanism,
    OneOf,
    ProfilePair,
    Selected,
    in_order,
)

# Up to this many kinds are computed exactly. `Fourier` takes about 5 ms for
# each.
MOST_KINDS = 400
# These mechanisms have a lower limit, because one kind takes `Fourier` 50 ms
# and 0.3 s.
_MOST_OF: Mapping[type[Mechanism], int] = {
    FixedSizeGaussian: 100,
}
# The numbers that are rounded, and what is said of them.
_NUMBERS = frozenset(
    {"noise_multiplier", "sampling_probability", "most_noise", "reached"}
)
# More than the rounding of a root of a sum.
_ROUNDING = 1e-15

# The least and the largest of some numbers, or arrays of both.
_Range: TypeAlias = tuple[Any, Any]


class FewKinds(NamedTuple):
    """Rounds of few kinds from both sides of a ledger.

    `upper` dominate the ledger, which dominates `lower`. Both are the same
    object if they are exact.
    """

    upper: tuple[CountedMechanism, ...]
    lower: tuple[CountedMechanism, ...]


def few_kinds(
    rounds: tuple[CountedMechanism, ...], most: int = MOST_KINDS
) -> FewKinds:
    """Returns the rounds if they are of few kinds, else rounded ones.

    Rounds that differ in their noise and probability alone are a cell. The cell
    that costs most is cut in two, where that helps most, until there are enough
    cells. A cell costs as many rounds as it has, times the distance of its
    bounds in the Rényi divergence of order 2. Gaussian rounds without sampling
    are together one such round, exactly. There are more than `most` kinds if
    many differ in something else.
    """
    sizes = Counter(type(mechanism) for mechanism, _ in rounds)
    reached = rounds
    if not are_reached(rounds):
        reached = tuple(CountedMechanism(_reached(m), n) for m, n in rounds)
    if len(rounds) <= most and all(
        sizes[kind] <= limit for kind, limit in _MOST_OF.items()
    ):
        return FewKinds(rounds, reached)
    found = _rounded(rounds, most)
    if reached is rounds:
        return found
    return FewKinds(found.upper, _rounded(reached, most).lower)


def are_reached(rounds: tuple[CountedMechanism, ...]) -> bool:
    """Returns whether two data sets reach each of the mechanisms."""
    return all(_reached(mechanism) is mechanism for mechanism, _ in rounds)


def _reached(mechanism: Mechanism) -> Mechanism:
    changes: dict[str, Any] = {}
    if isinstance(mechanism, FullOrNot):
        return _reached(mechanism.whole)
    if (most := getattr(mechanism, "most_noise", None)) is not None:
        changes = {"noise_multiplier": most, "most_noise": None}
    elif (least := getattr(mechanism, "reached", None)) is not None:
        changes = {"sampling_probability": least, "reached": None}
    if UNREACHED in changes.values():
        return Gaussian(UNREACHED)
    return dataclasses.replace(mechanism, **changes) if changes else mechanism


def _rounded(rounds: tuple[CountedMechanism, ...], most: int) -> FewKinds:
    upper: Counter[Mechanism] = Counter()
    lower: Counter[Mechanism] = Counter()
    cells: defaultdict[int, list[_Cell]] = defaultdict(list)
    for alike in _alike(rounds):
        first = alike[0].mechanism
        if isinstance(first, Gaussian):
            total = math.fsum(n / m.noise_multiplier**2 for m, n in alike)
            for kinds, sign in ((upper, -1), (lower, 1)):
                kinds[type(first)(total**-0.5 * (1 + sign * _ROUNDING))] += 1
        elif can_be_rounded(first):
            limit = min(most, _MOST_OF.get(type(first), most))
            cells[limit].append(_cell_of(alike))
        else:
            upper.update(dict(alike))
            lower.update(dict(alike))
    for limit, some in cells.items():
        for cell in _divided(some, limit):
            count = int(cell.counts.sum())
            upper[cell.dominating] += count
            lower[cell.dominated] += count
    return FewKinds(in_order(upper), in_order(lower))


def can_be_rounded(mechanism: Mechanism) -> bool:
    """Returns whether another noise makes another mechanism of the kind."""
    return (
        not isinstance(mechanism, OneOf | Selected | ProfilePair | FullOrNot)
        and 0 < mechanism.noise_multiplier < math.inf
    )


def _alike(
    rounds: Sequence[CountedMechanism],
) -> list[list[CountedMechanism]]:
    """Returns lists of rounds that differ in their numbers alone."""
    found: defaultdict[Hashable, list[CountedMechanism]] = defaultdict(list)
    for each in rounds:
        found[_without_numbers(each.mechanism)].append(each)
    return list(found.values())


def _without_numbers(mechanism: Mechanism) -> Hashable:
    if isinstance(mechanism, Gaussian):
        return Gaussian
    if not can_be_rounded(mechanism):
        return mechanism
    names = mechanism.__dataclass_fields__
    return type(mechanism), *(
        getattr(mechanism, name) for name in names if name not in _NUMBERS
    )


def _with_numbers(
    mechanism: Any, noise: float, probability: float
) -> Mechanism:
    """Returns the mechanism with other numbers, where it has them."""
    numbers: dict[str, float | None] = dict.fromkeys(_NUMBERS)
    numbers |= {"noise_multiplier": noise, "sampling_probability": probability}
    names = mechanism.__dataclass_fields__.keys() & _NUMBERS
    changes: Any = {name: numbers[name] for name in names}
    changed: Mechanism = dataclasses.replace(mechanism, **changes)
    return changed


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """Rounds that are put together, an entry for each kind of them."""

    example: Mechanism
    noises: Array
    probabilities: Array
    counts: Array

    @property
    def dominating(self) -> Mechanism:
        z, q = _range(self.noises), _range(self.probabilities)
        return _with_numbers(self.example, z[0], q[1])

    @property
    def dominated(self) -> Mechanism:
        z, q = _range(self.noises), _range(self.probabilities)
        return _with_numbers(self.example, z[1], q[0])

    @property
    def cost(self) -> float:
        """How far the bounds of the rounds are apart, 0 if they are equal."""
        z, q = _range(self.noises), _range(self.probabilities)
        return float(_cost(self.counts.sum(), z, q))

    def halves(self) -> tuple["_Cell", "_Cell"]:
        """Returns two cells that cost least, of different kinds."""
        z, q = _range(self.noises), _range(self.probabilities)
        best = math.inf
        for values in (self.noises, self.probabilities):
            order = np.argsort(values, kind="stable")
            rising = values[order]
            cuts = np.flatnonzero(np.diff(rising)) + 1
            if not cuts.size:
                continue
            left = rising[0], rising[cuts - 1]
            right = rising[cuts], rising[-1]
            below = np.cumsum(self.counts[order])[cuts - 1]
            above = self.counts.sum() - below
            if values is self.noises:
                costs = _cost(below, left, q) + _cost(above, right, q)
            else:
                costs = _cost(below, z, left) + _cost(above, z, right)
            cut = int(np.argmin(costs))
            if costs[cut] < best:
                best = costs[cut]
                members = order[: cuts[cut]], order[cuts[cut] :]
        first, second = (
            _Cell(
                self.example,
                self.noises[each],
                self.probabilities[each],
                self.counts[each],
            )
            for each in members
        )
        return first, second


def _cell_of(alike: Sequence[CountedMechanism]) -> _Cell:
    return _Cell(
        alike[0].mechanism,
        np.array([m.noise_multiplier for m, _ in alike]),
        np.array([m.sampling_probability for m, _ in alike]),
        np.array([float(count) for _, count in alike]),
    )


def _divided(cells: Sequence[_Cell], most: int) -> list[_Cell]:
    """Cuts the cells that cost most. One kind alone costs nothing."""
    # Numbers tell cells of equal costs apart.
    heap = [(-cell.cost, number, cell) for number, cell in enumerate(cells)]
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) < most and heap[0][0] < 0:
        for half in heapq.heappop(heap)[-1].halves():
            heapq.heappush(heap, (-half.cost, number, half))
            number += 1
    return [cell for _, _, cell in heap]


def _range(values: Array) -> _Range:
    return float(values.min()), float(values.max())


def _cost(counts: Any, noises: _Range, probabilities: _Range) -> Any:
    high = _divergence(noises[0], probabilities[1])
    low = _divergence(noises[1], probabilities[0])
    return counts * (high - low)


def _divergence(noise: Any, probability: Any) -> Array:
    """Returns `log(1 + q^2 (e^(1/z^2) - 1))`, without overflow."""
    v = np.asarray(noise, np.float64) ** -2.0
    small = np.log1p(probability**2 * np.expm1(np.minimum(v, EXPONENT)))
    large = v + 2 * np.log(probability)
    return np.asarray(np.where(v < EXPONENT, small, large))
