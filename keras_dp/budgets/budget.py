"""The protocol of budgets: capacities, prices, and the promise they keep."""

import abc
import dataclasses
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, ClassVar

from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.errors import BudgetExceededError
from keras_dp.ledger import CountedRound, Round

# Units of a capacity that is not a number of rounds. With so many, rounding
# each of 1e7 prices up takes 1e-11 of the capacity.
UNITS = 10**18


@dataclasses.dataclass(frozen=True, slots=True)
class Budget(abc.ABC):
    """A promise for all rounds of one account, and how to keep it.

    Attributes:
        epsilon: The most that the account may spend, > 0.
        delta: At which epsilon is meant, in (0, 1).
        neighbours: The adjacency relation of the promise.
    """

    kind: ClassVar[str]
    theorem: ClassVar[str]

    epsilon: float
    delta: float
    neighbours: Neighbours

    @property
    @abc.abstractmethod
    def capacities(self) -> tuple[int, ...]:
        """Returns the most that may be spent in each slot."""

    @abc.abstractmethod
    def promise(self, delta: float) -> float:
        """Returns the epsilon of all that the account may ever pay for.

        Args:
            delta: In (0, 1); that of the budget, or another.

        Returns:
            `inf` if the budget promises nothing at this delta.
        """

    @abc.abstractmethod
    def prices(self, round_: Round) -> tuple[tuple[int, int], ...]:
        """Returns what one round takes, as pairs of a slot and an amount.

        Guarantee: rounds chosen in any way, each after those before it, keep
        the promise as long as their prices fit the capacities.

        Raises:
            BudgetExceededError: The account has no such rounds.
            UnsupportedEventError: There is no sound price.
        """

    @abc.abstractmethod
    def share(self, budget: "Budget") -> tuple[tuple[int, int], ...]:
        """Returns what an account with another budget takes, as a share.

        Raises:
            ValueError: No such account can be a share of this one.
        """

    @property
    @abc.abstractmethod
    def pays_for_earlier(self) -> bool:
        """Returns whether it pays for rounds from before it was opened."""

    @abc.abstractmethod
    def check_held(self, held: Iterable[CountedRound]) -> "Budget":
        """Returns the budget of an account that pays for earlier rounds too.

        Args:
            held: Rounds that the ledger held when the account was opened.

        Raises:
            BudgetExceededError: They leave no room.
        """

    @abc.abstractmethod
    def terms(self) -> dict[str, Any]:
        """Returns what JSON can hold, from which the budget can be made."""


def units(part: float, whole: float) -> int:
    """Returns a share of a capacity of `UNITS`, rounded up.

    The numbers are taken as they are printed, so that ten parts of 0.1 fit
    into 1.

    >>> 10 * units(0.1, 1.0) == UNITS
    True
    """
    if not math.isfinite(part):
        raise BudgetExceededError(
            f"A round must have a finite price. Received: {part!r}. No account "
            "has room for it. Add noise."
        )
    exact = Fraction(repr(float(part))) / Fraction(repr(float(whole))) * UNITS
    return max(1, math.ceil(exact))
