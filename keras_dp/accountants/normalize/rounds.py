"""The rounds of a ledger, as they are and normalized: what accountants read."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from keras_dp.accountants.normalize.few_kinds import few_kinds
from keras_dp.accountants.normalize.mechanisms import CountedMechanism
from keras_dp.ledger import CountedRound, Round
from keras_dp.ledger.events.rounds import checked_pairs

Neighbours: TypeAlias = Literal["add_or_remove_one", "replace_one", "zero_out"]


# Beyond the first number of kinds of rounds, about the second stand for them
# where many numbers are asked for.
_MANY, _FEW = 1000, 64


@dataclasses.dataclass(frozen=True, slots=True)
class NormalizedRounds:
    """The mechanisms of a ledger for one record, which stand for it.

    Accountants answer for all records of a unit together, of which there are at
    most `rows_per_unit`.
    """

    neighbours: Neighbours
    mechanisms: tuple[CountedMechanism, ...] = dataclasses.field(repr=False)
    rows_per_unit: int = 1

    def normalized(self, neighbours: Neighbours | None) -> "NormalizedRounds":
        """Returns these rounds; raises if another relation is asked for."""
        if neighbours not in (None, self.neighbours):
            raise ValueError(
                f"`neighbours` must be {self.neighbours!r}, for which the "
                f"ledger was normalized. Received: neighbours={neighbours!r}."
            )
        return self

    def for_many_questions(self) -> "NormalizedRounds":
        """Returns these rounds; if of very many kinds, few that dominate them.

        An accountant takes about a second for 64 kinds, and some for 400.
        """
        return self if len(self.mechanisms) <= _MANY else self.of_kinds(_FEW)

    def of_kinds(self, most: int) -> "NormalizedRounds":
        """Returns rounds of about `most` kinds that dominate these."""
        fewer = few_kinds(self.mechanisms, most).upper
        return dataclasses.replace(self, mechanisms=fewer)


class HasRounds(Protocol):
    """A ledger: `rounds` holds pairs of a round and its count."""

    @property
    def rounds(self) -> Iterable[tuple[Round, int]]:
        """The rounds and how often each took place."""


@runtime_checkable
class NormalizesItself(Protocol):
    """A ledger that was normalized, or that remembers it if it is."""

    def normalized(self, neighbours: Neighbours | None) -> NormalizedRounds:
        """Returns the mechanisms of the rounds, with their unit."""


LedgerLike: TypeAlias = (
    HasRounds | Iterable[tuple[Round, int]] | NormalizesItself
)


def counted_rounds(ledger: LedgerLike) -> Iterator[CountedRound]:
    """Yields the rounds of a ledger, each with its count, checked."""
    pairs: Any = getattr(ledger, "rounds", ledger)
    remedy = 'Open a file by PrivacyLedger.open(path, mode="r").'
    return checked_pairs("ledger", pairs, remedy)


def rows_per_unit_of(ledger: LedgerLike) -> int:
    """Returns how many records one unit of a ledger has at most.

    It is 1 for pairs of a round and its count, which do not say what a unit is:
    then the unit is one record.
    """
    header = getattr(ledger, "header", ledger)
    return int(getattr(header, "rows_per_unit", 1))
