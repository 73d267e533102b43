"""The rounds of a ledger as accountants read them, for several questions."""

import dataclasses
from typing import Literal, TypeAlias

from keras_dp.accountants.normalize.few_kinds import few_kinds
from keras_dp.accountants.normalize.mechanisms import CountedMechanism

Neighbours: TypeAlias = Literal["add_or_remove_one", "replace_one", "zero_out"]


# Beyond the first number of kinds of rounds, about the second stand for them
# where many numbers are asked for.
_MANY, _FEW = 1000, 64


@dataclasses.dataclass(frozen=True, slots=True)
class NormalizedRounds:
    """The mechanisms of a ledger, which stand for it.

    Attributes:
        neighbours: The adjacency relation.
        mechanisms: Mechanisms and counts, in the order of `in_order`. They are
            what the rounds are for one record.
        rows_per_unit: The largest number of records that one unit has.
            Accountants answer for all of them together.
    """

    neighbours: Neighbours
    mechanisms: tuple[CountedMechanism, ...] = dataclasses.field(repr=False)
    rows_per_unit: int = 1

    def normalized(self, neighbours: Neighbours | None) -> "NormalizedRounds":
        """Returns these rounds.

        Args:
            neighbours: Their relation, or `None`.

        Raises:
            ValueError: It is another relation.
        """
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
