"""A plan that is fixed when its account is opened, composed exactly."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from keras_dp._override import override
from keras_dp.accountants.coverage import covers, spans_of
from keras_dp.accountants.normalize.mechanisms import CountedMechanism
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.accountants.replay import Replay
from keras_dp.budgets.budget import Budget
from keras_dp.errors import BudgetExceededError
from keras_dp.ledger import (
    CountedRound,
    CyclicPoissonSampling,
    DisjointBatches,
    Round,
)
from keras_dp.ledger.rows.codec import content_from_round, round_from_content


@dataclasses.dataclass(frozen=True, slots=True)
class FixedPlan(Budget):
    """All rounds that an account may ever pay for, fixed in advance.

    Guarantee: all rounds that the account pays for are, together,
    `(epsilon, delta)`-private, by the tightest accountant. They may run in any
    order, in several processes at the same time, and each as often as planned
    or less often. Answers may decide which of the planned rounds run. A round
    that was not planned does not run.

    Attributes:
        epsilon: The epsilon of the promise, > 0.
        delta: The delta of the promise, in (0, 1).
        neighbours: The adjacency relation of the promise.
        rounds: Pairs of a round and the largest number of times that it will
            run. A round that differs in names only, or in a clip but not in its
            noise multiplier, counts as the planned one.
        rows_per_unit: The largest number of records that one unit has, all of
            which the promise protects together. `open_account` takes it from
            the header of the ledger.
        held: The rounds that the ledger held before the account was opened,
            which the promise covers too.

    Raises:
        BudgetExceededError: The rounds, with those in `held`, cost more than
            `epsilon`.

    Source: Vadhan and Zhang (2023), arXiv:2207.08335, and Haney et al. (2023),
    arXiv:2309.05901: mechanisms that run at the same time compose no worse than
    their dominating pairs, fixed in advance.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 1.0),))
    >>> plan = FixedPlan([(step, 1000)], epsilon=2.5, delta=1e-5)
    >>> plan.capacities, plan.prices(step)
    ((1000,), ((0, 1),))
    >>> plan.cost < 2.5
    True
    """

    kind: ClassVar[str] = "plan"
    theorem: ClassVar[str] = (
        "composition of a plan fixed in advance (arXiv:2207.08335): which of "
        "its rounds run, and when, may depend on answers"
    )

    rounds: tuple[CountedRound, ...] = ()
    rows_per_unit: int = 1
    held: tuple[CountedRound, ...] = ()

    def __init__(
        self,
        rounds: Iterable[tuple[Round, int]],
        epsilon: float,
        delta: float,
        neighbours: Neighbours = "add_or_remove_one",
        rows_per_unit: int = 1,
        held: Iterable[tuple[Round, int]] = (),
    ) -> None:
        self._set(
            *(epsilon, delta, neighbours),
            rounds=_merged(rounds),
            rows_per_unit=rows_per_unit,
            held=_merged(held),
        )
        if self.cost > self.epsilon:
            raise BudgetExceededError(
                "`rounds` must cost at most `epsilon`, together with those "
                f"that the ledger holds. Received: rounds that cost "
                f"{self.cost:.6g} at delta={delta!r}, for epsilon={epsilon!r}. "
                "Plan fewer rounds, or more noise."
            )

    @property
    def cost(self) -> float:
        """The certified epsilon of the plan and of the rounds in `held`."""
        return self.promise(self.delta)

    @override
    def promise(self, delta: float) -> float:
        return _cost(self, delta)

    @property
    @override
    def capacities(self) -> tuple[int, ...]:
        return tuple(count for _, count in self.rounds)

    @override
    def prices(self, round_: Round) -> tuple[tuple[int, int], ...]:
        for slot, (planned, _) in enumerate(self.rounds):
            if planned == round_:
                return ((slot, 1),)
        mechanism = _alone(round_, self.neighbours)
        for slot, (planned, _) in enumerate(self.rounds):
            if mechanism and mechanism == _alone(planned, self.neighbours):
                return ((slot, 1),)
        remedy = (
            "The id of an epoch is drawn when it begins, so that no plan has "
            "it: draw samples with PoissonBatches, or train on a ledger "
            "without accounts."
            if isinstance(
                round_.sampling,
                DisjointBatches | CyclicPoissonSampling,
            )
            else f"The plan has {[each for each, _ in self.rounds]!r}."
        )
        raise BudgetExceededError(
            "A round must be one of those in the plan of its account. Received:"
            f" {round_!r}. It does not run. {remedy}"
        )

    @property
    @override
    def trees(self) -> frozenset[str]:
        return frozenset(
            query.span_id
            for round_, _ in (*self.held, *self.rounds)
            for query in round_.queries
            if query.span_id is not None
        )

    @override
    def for_unit(self, rows_per_unit: int) -> Self:
        return dataclasses.replace(self, rows_per_unit=rows_per_unit)

    @override
    def holds(self, earlier: Iterable[CountedRound]) -> bool:
        return covers(self.held, tuple(earlier), self.neighbours)

    @override
    def check_held(self, held: Iterable[CountedRound]) -> Self:
        return dataclasses.replace(self, held=_merged(held))

    @override
    def terms(self) -> dict[str, Any]:
        def content(rounds: tuple[CountedRound, ...]) -> list[Any]:
            return [[content_from_round(each), count] for each, count in rounds]

        return {
            "kind": self.kind,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "neighbours": self.neighbours,
            "rows_per_unit": self.rows_per_unit,
            "rounds": content(self.rounds),
            "held": content(self.held),
        }

    @classmethod
    def from_terms(cls, terms: dict[str, Any]) -> Self:
        """Returns the plan of some `terms`, without the entry `kind`."""
        rounds, held = (
            [(round_from_content(each), count) for each, count in terms[name]]
            for name in ("rounds", "held")
        )
        return cls(**{**terms, "rounds": rounds, "held": held})


def _merged(
    rounds: Iterable[tuple[Round, int]],
) -> tuple[CountedRound, ...]:
    counts: Counter[Round] = Counter()
    for round_, count in rounds:
        counts[round_] += int(count)
    return tuple(CountedRound(*pair) for pair in counts.items())


@functools.lru_cache(maxsize=64)
def _cost(plan: FixedPlan, delta: float) -> float:
    replay = Replay(plan).plus(plan.held)
    return replay.claim(delta=delta, neighbours=plan.neighbours).epsilon


@functools.lru_cache(maxsize=4096)
def _alone(
    round_: Round, neighbours: Neighbours
) -> tuple[CountedMechanism, ...]:
    """Returns a round as mechanisms; none if it is not private by itself."""
    if any(spans_of(round_)):
        return ()
    return normalize([(round_, 1)], neighbours)
