"""The protocol of budgets: capacities, prices, and the promise they keep."""

import abc
import dataclasses
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, ClassVar

from keras_dp import _check
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.accountants.normalize.samplings import RELATIONS
from keras_dp.errors import BudgetExceededError
from keras_dp.ledger import CountedRound, Round
from keras_dp.planning.calibration import checked_target

# Units of a capacity that is not a number of rounds. With so many, rounding
# each of 1e7 prices up takes 1e-11 of the capacity.
UNITS = 10**18


@dataclasses.dataclass(frozen=True, slots=True)
class Budget(abc.ABC):
    """The rule of an account: a promise for all its rounds, and their prices.

    The promise: all rounds that the account pays for are, together,
    `(epsilon, delta)`-private.

    Attributes:
        epsilon: The epsilon of the promise, > 0.
        delta: The delta of the promise, in (0, 1).
        neighbours: The adjacency relation of the promise.
    """

    kind: ClassVar[str]
    theorem: ClassVar[str]

    epsilon: float
    delta: float
    neighbours: Neighbours

    def _set(
        self, epsilon: float, delta: float, neighbours: Any, **others: Any
    ) -> None:
        """Checks and sets the promise, and sets other fields."""
        checked_target(epsilon, delta)
        _check.one_of(RELATIONS, neighbours=neighbours)
        fields = {
            "epsilon": float(epsilon),
            "delta": float(delta),
            "neighbours": neighbours,
            **others,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    @abc.abstractmethod
    def capacities(self) -> tuple[int, ...]:
        """Returns the largest amount that may be spent from each slot."""

    @property
    def trees(self) -> frozenset[str]:
        """The ids of the trees and mechanisms that the promise covers."""
        return frozenset()

    @abc.abstractmethod
    def promise(self, delta: float) -> float:
        """Returns the epsilon that the budget promises at another delta.

        Args:
            delta: The delta of the promise, or another one, in (0, 1).

        Returns:
            The epsilon of all rounds that the account can ever pay for; `inf`
            if the budget promises nothing at this delta.
        """

    @abc.abstractmethod
    def prices(self, round_: Round) -> tuple[tuple[int, int], ...]:
        """Returns the price of one round, as pairs of a slot and an amount.

        Guarantee: the promise holds for rounds whose prices fit the capacities,
        even if each round was chosen after the answers of the earlier ones.

        Args:
            round_: The sample and the releases of the round.

        Raises:
            BudgetExceededError: The account cannot pay for such a round.
            UnsupportedEventError: The budget has no sound price for it.
        """

    def for_unit(self, rows_per_unit: int) -> "Budget":
        """Returns this budget as a promise for all records of one unit.

        Args:
            rows_per_unit: The largest number of records that one unit has.

        Raises:
            BudgetExceededError: The promise does not hold for so many.
            ValueError: The promise is for one record only.
        """
        if rows_per_unit > 1:
            raise ValueError(
                "`budget` must be a FixedPlan in a ledger whose units have "
                "several records, because others promise something for one "
                f"record only. Received: budget={self!r}, for a ledger with "
                f"rows_per_unit={rows_per_unit}. Use a FixedPlan."
            )
        return self

    @abc.abstractmethod
    def holds(self, earlier: Iterable[CountedRound]) -> bool:
        """Returns whether the promise covers rounds that no account paid for.

        Args:
            earlier: All rounds from before the account was opened.

        Raises:
            UnsupportedEventError: The budget has no price for one of them.
        """

    @abc.abstractmethod
    def check_held(self, held: Iterable[CountedRound]) -> "Budget":
        """Returns a budget like this one that pays for earlier rounds too.

        Args:
            held: The rounds that the ledger holds when the account is opened.
                Those that are reserved count in full.

        Raises:
            BudgetExceededError: The budget has no room for the earlier rounds.
        """

    def terms(self) -> dict[str, Any]:
        """Returns the kind and the fields of the budget, for JSON."""
        return {"kind": self.kind, **dataclasses.asdict(self)}


def units(part: float, whole: float) -> int:
    """Returns `part / whole` in units of a capacity of `UNITS`, rounded up.

    It computes with the decimal numbers that Python prints, so that ten parts
    of 0.1 fit into 1.

    >>> 10 * units(0.1, 1.0) == UNITS
    True
    """
    if not math.isfinite(part):
        raise BudgetExceededError(
            f"A round must have a finite price. Received: {part!r}. No account "
            "has room for it. Add noise to every query of the round."
        )
    exact = Fraction(repr(float(part))) / Fraction(repr(float(whole))) * UNITS
    return max(1, math.ceil(exact))
