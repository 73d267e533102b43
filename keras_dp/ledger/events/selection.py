"""The best of a random number of trials, as one release."""

import dataclasses
from collections.abc import Iterable
from typing import ClassVar, TypeAlias

from keras_dp import _check
from keras_dp._override import override
from keras_dp.ledger.events.rounds import FullDataset, Round, SumQueryEvent
from keras_dp.ledger.events.trial_laws import TrialLaw

# The rounds of one trial and their counts.
Plan: TypeAlias = tuple[tuple[Round, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Selection(SumQueryEvent):
    """The best of a random number of trials: one release.

    Each trial runs the same rounds over the data set, and has a score. The
    trial with the highest score is released with all that it answered, and
    nothing else: no other trial, and not how many there were. Equal scores are
    put in order at random. A law without any trial may release nothing.

    A selection is the only query of a round over the `FullDataset`. `round`
    makes this round, which stands for all trials.

    Attributes:
        plans: The rounds of one trial, at most: pairs of a round and how often
            it takes place. These are its training, its score, and whatever else
            it asks of the private data. The score is computed from the answers
            of these rounds, and from public data. If settings such as the batch
            size make other rounds, there is one plan for each setting, and each
            trial draws one without a look at the data.
        law: How the number of trials is drawn: without a look at the data.
        name: The name of the release.

    Raises:
        ValueError: `plans` or one of them is empty, or a count is below 1.
        TypeError: A plan does not hold pairs of a round and its count, or
            `law` is no law of this library.

    Source: Liu and Talwar (2019), arXiv:1811.07971; Papernot and Steinke
    (2022), arXiv:2110.03620, Section 2.

    >>> from keras_dp.ledger import (
    ...     GaussianSum, PoissonSampling, TruncatedNegativeBinomial)
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> law = TruncatedNegativeBinomial(shape=1, mean=20)
    >>> search = Selection([[(step, 1000)]], law)
    >>> search.words
    'search: the best of 20 trials on average (geometric), 1,000 rounds each'
    """

    kind: ClassVar[str] = "selection"
    stands_alone: ClassVar[bool] = True

    plans: tuple[Plan, ...]
    law: TrialLaw
    name: str = "search"

    def __post_init__(self) -> None:
        _check.non_empty_text(name=self.name)
        _check.kind(TrialLaw, law=self.law)
        plans = tuple(_checked(plan) for plan in self.plans)
        if not plans:
            raise ValueError(
                "`plans` must hold at least one plan of a trial. "
                "Received: plans=()."
            )
        object.__setattr__(self, "plans", plans)

    @property
    def round(self) -> Round:
        """The round that stands for all trials, to be recorded before them."""
        drawn = all(
            each.sampling.drawn_by_library for each, _ in self.all_rounds
        )
        return Round(FullDataset(drawn), (self,), self.is_seeded)

    @property
    def all_rounds(self) -> tuple[tuple[Round, int], ...]:
        """The rounds of all plans, with their counts."""
        return tuple(pair for plan in self.plans for pair in plan)

    @property
    @override
    def is_private(self) -> bool:  # type: ignore[override]
        return all(
            query.is_private
            for each, _ in self.all_rounds
            for query in each.queries
        )

    @property
    @override
    def is_seeded(self) -> bool:
        return any(each.seeded for each, _ in self.all_rounds)

    @override
    @property
    def words(self) -> str:
        sizes = [sum(count for _, count in plan) for plan in self.plans]
        least, most = min(sizes), max(sizes)
        rounds = f"{most:,} round{'s' * (most != 1)}"
        if least < most:
            rounds = f"{least:,} to {rounds}"
        return f"{self.name}: the best of {self.law.words}, {rounds} each"


def _checked(plan: Iterable[tuple[Round, int]]) -> Plan:
    """Returns a plan as a tuple, if it is one."""
    pairs = []
    for pair in plan:
        if (
            not isinstance(pair, tuple | list)
            or len(pair) != 2
            or not isinstance(pair[0], Round)
        ):
            raise TypeError(
                "A plan in `plans` must hold pairs (Round, count). "
                f"Received: {_check.shown(pair)} in a plan. For one plan, "
                "pass plans=[plan]."
            )
        _check.integer_at_least(1, count=pair[1])
        pairs.append((pair[0], int(pair[1])))
    if not pairs:
        raise ValueError(
            "A plan in `plans` must hold at least one pair (Round, count). "
            "Received: a plan without rounds."
        )
    return tuple(pairs)
