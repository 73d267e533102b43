"""A budget that is divided into shares; their epsilons and deltas add up."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from keras_dp._override import override
from keras_dp.budgets.budget import UNITS, Budget, units
from keras_dp.errors import BudgetExceededError
from keras_dp.ledger import CountedRound, Round


@dataclasses.dataclass(frozen=True, slots=True)
class Division(Budget):
    """The budget of a data set, to be divided into accounts that are shares.

    Guarantee: all answers that the shares pay for are, together,
    `(epsilon, delta)`-private, because the epsilons and deltas of the shares
    add up to at most those of the division. Shares may be opened at any time,
    for any purpose, after all earlier answers were seen, and may be used at the
    same time.

    Shares of a `FixedPlan` give a smaller epsilon for the same rounds, because
    a plan is composed exactly.

    Attributes:
        epsilon: The sum of the epsilons of all shares is at most this, > 0.
        delta: The sum of the deltas of all shares is at most this, in (0, 1).
        neighbours: The adjacency relation, the same for all shares.

    Source: Rogers et al. (2016), arXiv:1605.08294 (a filter that adds up
    epsilons and deltas); shares that are used at the same time: Haney et al.
    (2023), arXiv:2309.05901.

    >>> whole = Division(3.0, 1e-5)
    >>> whole.share(Division(1.5, 5e-6)) == ((0, UNITS // 2), (1, UNITS // 2))
    True
    """

    capacities = (UNITS, UNITS)

    kind: ClassVar[str] = "division"
    theorem: ClassVar[str] = (
        "shares whose epsilons and deltas add up (arXiv:1605.08294, "
        "arXiv:2309.05901): they may depend on all answers before"
    )

    def __init__(
        self,
        epsilon: float,
        delta: float,
        neighbours: Any = "add_or_remove_one",
    ) -> None:
        self._set(epsilon, delta, neighbours)

    @override
    def promise(self, delta: float) -> float:
        return self.epsilon if delta >= self.delta else math.inf

    @override
    def prices(self, round_: Round) -> tuple[tuple[int, int], ...]:
        raise BudgetExceededError(
            "A round must be paid by a share of a divided account. Received: a "
            "round to be paid by the divided account itself. Name one of its "
            "shares."
        )

    @override
    def share(self, budget: Budget) -> tuple[tuple[int, int], ...]:
        self.check_relation(budget)
        return (
            (0, units(budget.epsilon, self.epsilon)),
            (1, units(budget.delta, self.delta)),
        )

    @override
    def holds(self, earlier: Iterable[CountedRound]) -> bool:
        return not tuple(earlier)

    @override
    def check_held(self, held: Iterable[CountedRound]) -> Self:
        if tuple(held):
            raise BudgetExceededError(
                "`budget` must pay for the rounds that the ledger holds "
                "already. Received: a Division, which pays for shares only. "
                "Open a FixedPlan or a filter, or divide a new ledger."
            )
        return self
