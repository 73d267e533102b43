"""Which accountant prices a ledger, and what it is to price."""

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.available import available_accountants
from keras_dp.accountants.normalize.mechanisms import CountedMechanism
from keras_dp.accountants.normalize.normalize import (
    Neighbours,
    check_neighbours,
    normalize,
)
from keras_dp.accountants.normalize.rounds import LedgerLike, counted_rounds
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import Round


def materialized(ledger: LedgerLike) -> tuple[tuple[Round, int], ...]:
    """Returns the rounds and counts of a ledger, which may be an iterator."""
    return tuple(counted_rounds(ledger))


def chosen_accountant(
    accountant: Accountant | None, ledger: LedgerLike, neighbours: Neighbours
) -> Accountant:
    """Returns `accountant`, or the tightest that can replay `ledger`.

    Raises:
        UnsupportedEventError: It is None, and none can.
    """
    check_neighbours(neighbours)
    if accountant is not None:
        return accountant
    available = [
        each
        for each in available_accountants(ledger, neighbours=neighbours)
        if each.is_bound
    ]
    if not available:
        normalize(ledger, neighbours)  # Names the round, in most cases.
        raise UnsupportedEventError(
            "`ledger` must have a sound bound under `neighbours` in one of "
            f"the accountants. Received: neighbours={neighbours!r}."
        )
    return available[0]


def replayed(
    ledger: LedgerLike, accountant: Accountant | None, neighbours: Neighbours
) -> tuple[Accountant, tuple[CountedMechanism, ...]]:
    """Returns the accountant and what it is to price."""
    pairs = materialized(ledger)
    chosen = chosen_accountant(accountant, pairs, neighbours)
    return chosen, chosen.normalized(pairs, neighbours)
