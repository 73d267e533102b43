"""The rounds of a ledger as accountants read them, for several questions."""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias

from keras_dp.accountants.normalize.few_kinds import few_kinds
from keras_dp.accountants.normalize.mechanisms import CountedMechanism
from keras_dp.accountants.normalize.order import in_order

Neighbours: TypeAlias = Literal["add_or_remove_one", "replace_one", "zero_out"]


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

    def merged(self, most: int) -> "NormalizedRounds":
        """Returns rounds that dominate these, of about `most` kinds."""
        fewer = few_kinds(self.mechanisms, most).upper
        return dataclasses.replace(self, mechanisms=fewer)

    def plus(self, more: Iterable[CountedMechanism]) -> "NormalizedRounds":
        """Returns these rounds and others."""
        counts = Counter(dict(self.mechanisms))
        for mechanism, count in more:
            counts[mechanism] += count
        return dataclasses.replace(self, mechanisms=in_order(counts))
