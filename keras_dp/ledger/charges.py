"""Charges: the cost of rounds to an account, in whole numbers.

An account has a *capacity* in one or several slots. A charge says how much of
them a round takes. What a unit of a slot means, and why what fits the capacity
keeps the promise of the account, is not known here: `keras_dp.budgets` sets
capacities and prices. Whole numbers add up to the same sum in any order and in
any process, so that a transaction can decide whether a round fits.
"""

import json
from collections.abc import Iterable
from typing import NamedTuple

from keras_dp.errors import BudgetExceededError, LedgerFormatError
from keras_dp.ledger.canonical import canonical
from keras_dp.ledger.rows import LARGEST_COUNT


class Charge(NamedTuple):
    """The cost of one round.

    Attributes:
        account: The row that opened the account.
        prices: Pairs of a slot and what is taken from it, each > 0; the slots
            increase. Empty if the round costs nothing.
    """

    account: int
    prices: tuple[tuple[int, int], ...]

    def as_text(self) -> str:
        """Returns canonical JSON."""
        return canonical([self.account, [list(pair) for pair in self.prices]])

    @classmethod
    def from_text(cls, text: str) -> "Charge":
        """Inverts `as_text`.

        Raises:
            LedgerFormatError: No charge is written as this text.
        """
        try:
            account, pairs = json.loads(text)
            charge = cls(account, tuple((slot, price) for slot, price in pairs))
            numbers = [account, *(n for pair in charge.prices for n in pair)]
            slots = [slot for slot, _ in charge.prices]
            if (
                any(type(number) is not int for number in numbers)
                or any(price < 1 for _, price in charge.prices)
                or slots != sorted(set(slots))
                or any(slot < 0 for slot in slots)
                or charge.as_text() != text
            ):
                raise ValueError("it is not written as `as_text` writes it")
        except (TypeError, ValueError, RecursionError) as error:
            raise LedgerFormatError(
                f"A charge of the ledger cannot be read: {error}"
            ) from error
        return charge


class Balance(NamedTuple):
    """The capacity of an account in each slot, and the amount it has spent."""

    capacities: tuple[int, ...]
    spent: tuple[int, ...]

    def room(self, charge: Charge, count: int) -> int:
        """Returns how many of `count` rounds at this charge fit."""
        for slot, price in charge.prices:
            left = self.capacities[slot] - self.spent[slot]
            count = min(count, left // price)
        return max(0, count)

    def after(self, charge: Charge, count: int) -> "Balance":
        """Returns the balance after `count` rounds, or fewer if negative.

        Raises:
            BudgetExceededError: They do not fit.
        """
        if count > 0 and self.room(charge, count) < count:
            raise BudgetExceededError(
                "The account must have room for every round that is reserved. "
                f"Received: {count:,} rounds, with room for "
                f"{self.room(charge, count):,}. None of them may run."
            )
        spent = list(self.spent)
        for slot, price in charge.prices:
            spent[slot] += price * count
        return self._replace(spent=tuple(spent))


def opened(capacities: Iterable[int]) -> Balance:
    """Returns the balance of an account that has spent nothing.

    Raises:
        ValueError: There is no slot, or a capacity is not in [0, 2^63).
    """
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
    """Returns canonical JSON: the slots of each account by its row."""
    return canonical(
        {
            str(row): [list(balance.capacities), list(balance.spent)]
            for row, balance in balances.items()
        }
    )


def balances_from_text(text: str) -> dict[int, Balance]:
    """Inverts `text_from_balances`; the text has passed its hash."""
    return {
        int(row): Balance(tuple(capacities), tuple(spent))
        for row, (capacities, spent) in json.loads(text).items()
    }
