"""The rounds of a ledger as accountants read them, for several questions."""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import numpy as np

from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Mechanism,
    OneOf,
)

Neighbours: TypeAlias = Literal["add_or_remove_one", "replace_one", "zero_out"]


@dataclasses.dataclass(frozen=True, slots=True)
class NormalizedRounds:
    """The mechanisms of a ledger, which stand for it.

    Attributes:
        neighbours: The adjacency relation.
        mechanisms: Mechanisms and counts, in the order of `in_order`.
    """

    neighbours: Neighbours
    mechanisms: tuple[CountedMechanism, ...] = dataclasses.field(repr=False)

    def merged(self, most: int) -> "NormalizedRounds":
        """Returns rounds that dominate these, of about `most` kinds.

        Where there are more, noises are rounded down to steps of equal ratio
        between the least and the largest one of a kind; epsilon rises by
        twice such a step at most, unless noise is next to none. More noise
        is post-processing.
        """
        if len(self.mechanisms) <= most:
            return self
        noises: defaultdict[type[Mechanism], list[float]] = defaultdict(list)
        for mechanism, _ in self.mechanisms:
            if can_be_rounded(mechanism):
                noises[type(mechanism)].append(mechanism.noise_multiplier)
        steps = {}
        for kind, found in noises.items():
            low, high = min(found), max(found)
            steps[kind] = np.geomspace(low, high, most)
            steps[kind][0] = low
        counts: Counter[Mechanism] = Counter()
        lower = {
            kind: dict(
                zip(
                    found,
                    steps[kind][
                        np.searchsorted(steps[kind], found, side="right") - 1
                    ].tolist(),
                    strict=True,
                )
            )
            for kind, found in noises.items()
        }
        for mechanism, count in self.mechanisms:
            if can_be_rounded(mechanism):
                less = lower[type(mechanism)][mechanism.noise_multiplier]
                mechanism = dataclasses.replace(
                    mechanism, noise_multiplier=less
                )
            counts[mechanism] += count
        return NormalizedRounds(self.neighbours, in_order(counts))

    def plus(self, more: Iterable[CountedMechanism]) -> "NormalizedRounds":
        """Returns these rounds and others."""
        counts = Counter(dict(self.mechanisms))
        for mechanism, count in more:
            counts[mechanism] += count
        return NormalizedRounds(self.neighbours, in_order(counts))


def in_order(
    counts: Mapping[Mechanism, int],
) -> tuple[CountedMechanism, ...]:
    """Returns mechanisms in the order on which last digits depend."""
    return tuple(
        CountedMechanism(mechanism, counts[mechanism])
        for mechanism in sorted(counts, key=place)
    )


def place(mechanism: Mechanism) -> tuple[str, float, float, str]:
    """Returns by what mechanisms are ordered."""
    name = type(mechanism).__name__
    rest = "" if name in _TOLD_BY_NUMBERS else _text(mechanism)
    z, q = mechanism.noise_multiplier, mechanism.sampling_probability
    return name, z, q, rest


def _text(mechanism: Mechanism) -> str:
    return repr(mechanism) + repr(dataclasses.astuple(mechanism))


def can_be_rounded(mechanism: Mechanism) -> bool:
    """Returns whether another noise makes another mechanism of the kind."""
    return (
        not isinstance(mechanism, OneOf)
        and 0 < mechanism.noise_multiplier < math.inf
    )


_TOLD_BY_NUMBERS = frozenset(
    {
        "Gaussian",
        "SampledGaussian",
        "SampledGaussianReplaceOne",
        "FixedSizeGaussian",
        "DiscreteGaussian",
        "SampledDiscreteGaussian",
    }
)
