"""The choice of an accountant and an adjacency relation for a ledger."""

from typing import NamedTuple

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.available import available_accountants
from keras_dp.accountants.normalize.adjacency import (
    Neighbours,
    chosen_neighbours,
)
from keras_dp.accountants.normalize.mechanisms import CountedMechanism
from keras_dp.accountants.normalize.normalize import normalized
from keras_dp.accountants.normalize.normalized_rounds import (
    NormalizedRounds,
)
from keras_dp.accountants.normalize.rounds import LedgerLike
from keras_dp.accountants.rdp import RDP
from keras_dp.errors import UnsupportedEventError


class Choice(NamedTuple):
    """The accountant and the adjacency relation for a ledger.

    Attributes:
        accountant: The given accountant, or the tightest that has a bound.
        neighbours: The given relation, or the strongest that all rounds
            support.
    """

    accountant: Accountant
    neighbours: Neighbours


class Replayed(NamedTuple):
    """The normalized rounds of a ledger, with an accountant for them.

    Attributes:
        accountant: An accountant that has a bound for every round.
        neighbours: The adjacency relation of the rounds.
        rounds: The mechanisms of the rounds, with their counts.
    """

    accountant: Accountant
    neighbours: Neighbours
    rounds: tuple[CountedMechanism, ...]


def chosen(
    ledger: LedgerLike,
    accountant: Accountant | None,
    neighbours: Neighbours | None,
) -> Choice:
    """Returns the accountant and the relation; it reads the ledger twice.

    Raises:
        UnsupportedEventError: All rounds support no common relation.
        ValueError: `neighbours` is unknown.
    """
    relation = chosen_neighbours(ledger, neighbours)
    if accountant is None:
        try:
            accountant = _tightest(normalized(ledger, relation))
        except UnsupportedEventError:
            accountant = RDP()
    return Choice(accountant, relation)


def replayed(
    ledger: LedgerLike,
    accountant: Accountant | None,
    neighbours: Neighbours | None,
) -> Replayed:
    """Returns the normalized rounds of a ledger, with an accountant for them.

    Raises:
        UnsupportedEventError: The accountant has no sound bound for a round.
    """
    found = normalized(ledger, neighbours)
    by = accountant or _tightest(found)
    by.check_supported(found.mechanisms)
    return Replayed(by, found.neighbours, found.mechanisms)


def _tightest(ledger: NormalizedRounds) -> Accountant:
    available = available_accountants(ledger)
    # If there is none, the errors of `RDP` say why.
    return next((each for each in available if each.is_bound), RDP())
