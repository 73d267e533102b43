"""Charges: the cost of rounds to an account, in whole numbers.

An account has one or several *slots*, each with a *capacity*. A *charge* says
how much a round takes from which slot. This module only counts. It does not
know what a unit of a slot means, nor why rounds that fit the capacities keep
the promise of the account: `keras_dp.budgets` chooses capacities and prices.

The numbers are whole because whole numbers have the same sum in any order and
in any process. So a transaction can decide whether a round fits.
"""

from collections.abc import Iterable
from typing import NamedTuple

from keras_dp.errors import BudgetExceededError
from keras_dp.ledger.rows.codec import canonical, decoded, readable
from keras_dp.ledger.rows.row import LARGEST_COUNT


class Charge(NamedTuple):
    """The cost of one round to an account.

    Attributes:
        account: The number of the row that opened the account.
        prices: Pairs of a slot, counted from 0, and a price > 0 in units of
            this slot; in the order of the slots. Empty if the round is free.
    """

    account: int
    prices: tuple[tuple[int, int], ...]

    def as_text(self) -> str:
        """Returns canonical JSON, and refuses fields of another form.

        A price below 1 would give back what others have spent.
        """
        try:
            pairs = [[slot, price] for slot, price in self.prices]
        except (TypeError, ValueError):
            pairs = [[-1, -1]]
        slots = [slot for slot, _ in pairs]
        if (
            any(type(n) is not int for pair in pairs for n in pair)
            or type(self.account) is not int
            or any(slot < 0 or price < 1 for slot, price in pairs)
            or slots != sorted(set(slots))
        ):
            raise ValueError(
                "`charge` must have the number of an account, and pairs of a "
                "slot >= 0 and a price >= 1, both int, in the order of the "
                f"slots. Received: {self!r}."
            )
        return canonical([self.account, pairs])

    @classmethod
    def from_text(cls, text: str) -> "Charge":
        """Inverts `as_text`."""
        with readable("A charge of the ledger"):
            account, pairs = decoded(text)
            charge = cls(account, tuple((slot, price) for slot, price in pairs))
            if charge.as_text() != text:
                raise ValueError("it is not written as `as_text` writes it")
        return charge


class Balance(NamedTuple):
    """The capacity of an account in each slot, and the amount it has spent.

    Attributes:
        capacities: The largest amount that may be spent, for each slot.
        spent: The amount that was spent so far, for each slot.

    >>> balance = Balance(capacities=(1000,), spent=(0,))
    >>> balance.after(Charge(1, ((0, 250),)), count=3)
    Balance(capacities=(1000,), spent=(750,))
    """

    capacities: tuple[int, ...]
    spent: tuple[int, ...]

    def room(self, charge: Charge, count: int) -> int:
        """Returns how many of `count` rounds with this charge fit."""
        for slot, price in charge.prices:
            left = self.capacities[slot] - self.spent[slot]
            count = min(count, left // price)
        return max(0, count)

    def after(self, charge: Charge, count: int) -> "Balance":
        """Returns the balance after `count` more rounds.

        Args:
            charge: The cost of each round.
            count: The number of rounds; a negative number gives rounds back.

        Raises:
            BudgetExceededError: The rounds exceed a capacity.
        """
        if count > 0 and self.room(charge, count) < count:
            raise BudgetExceededError(
                "The account must have room for every round that is reserved. "
                f"Received: {count:,} rounds, with room for "
                f"{self.room(charge, count):,}. None of them may run. Ask for "
                "fewer rounds, or use another account."
            )
        spent = list(self.spent)
        for slot, price in charge.prices:
            spent[slot] += price * count
        return self._replace(spent=tuple(spent))


def opened(capacities: Iterable[int]) -> Balance:
    """Returns the balance of a new account, which has spent nothing."""
    slots = tuple(capacities)
    if not slots or any(
        type(size) is not int or not 0 <= size <= LARGEST_COUNT
        for size in slots
    ):
        raise ValueError(
            "`capacities` must be integers in [0, 2^63), at least one. "
            f"Received: capacities={slots!r}."
        )
    return Balance(slots, (0,) * len(slots))


def text_from_balances(balances: dict[int, Balance]) -> str:
    """Returns canonical JSON: the balance of each account, by its row."""
    return canonical(
        {
            str(row): [list(balance.capacities), list(balance.spent)]
            for row, balance in balances.items()
        }
    )


def balances_from_text(text: str) -> dict[int, Balance]:
    """Inverts `text_from_balances`; the hash of the text was checked before."""
    return {
        int(row): Balance(tuple(capacities), tuple(spent))
        for row, (capacities, spent) in decoded(text).items()
    }
