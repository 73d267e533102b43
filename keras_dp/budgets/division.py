"""A budget that is divided into shares, whose epsilons and deltas add up."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from typing_extensions import override

from keras_dp.budgets.budget import UNITS, Budget, units
from keras_dp.errors import BudgetExceededError
from keras_dp.ledger import CountedRound, Round
from keras_dp.planning.calibration import check_target


@dataclasses.dataclass(frozen=True, slots=True)
class Division(Budget):
    """The budget of a data set, given away in shares.

    Guarantee: the shares may be opened at any time, for anything, depending on
    all answers before, and spent side by side. With their epsilons and deltas
    adding up to at most those of the division, all answers together are
    `(epsilon, delta)`-private.

    A plan that is shared is tighter: `FixedPlan` composes exactly.

    Source: Rogers et al. (2016), arXiv:1605.08294 (the filter that
    adds up); interleaved shares: Haney et al. (2023), arXiv:2309.05901.

    >>> whole = Division(3.0, 1e-5)
    >>> whole.share(Division(1.5, 5e-6)) == ((0, UNITS // 2), (1, UNITS // 2))
    True
    """

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
        check_target(epsilon, delta)
        for name, value in (
            ("epsilon", float(epsilon)),
            ("delta", float(delta)),
            ("neighbours", neighbours),
        ):
            object.__setattr__(self, name, value)

    @property
    @override
    def capacities(self) -> tuple[int, ...]:
        return (UNITS, UNITS)

    @override
    def promise(self, delta: float) -> float:
        return self.epsilon if delta >= self.delta else math.inf

    @override
    def prices(self, round_: Round) -> tuple[tuple[int, int], ...]:
        raise BudgetExceededError(
            "A round must be paid by a share of a divided account. Received: a "
            "round for the whole. Name one of its shares."
        )

    @override
    def share(self, budget: Budget) -> tuple[tuple[int, int], ...]:
        if budget.neighbours != self.neighbours:
            raise ValueError(
                f"`neighbours` must be {self.neighbours!r}, as in the account "
                f"that is shared. Received: neighbours={budget.neighbours!r}."
            )
        return (
            (0, units(budget.epsilon, self.epsilon)),
            (1, units(budget.delta, self.delta)),
        )

    @property
    @override
    def pays_for_earlier(self) -> bool:
        return False

    @override
    def check_held(self, held: Iterable[CountedRound]) -> Self:
        if tuple(held):
            raise BudgetExceededError(
                "`budget` must pay for the rounds that the ledger holds "
                "already. Received: a Division, which pays for shares. Open a "
                "FixedPlan or a filter, or divide a new ledger."
            )
        return self

    @override
    def terms(self) -> dict[str, Any]:
        return {"kind": self.kind, **dataclasses.asdict(self)}
