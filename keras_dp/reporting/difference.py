"""Compares the rounds of two ledgers."""

import dataclasses
from collections import Counter
from collections.abc import Iterator

from keras_dp.accountants.normalize.rounds import LedgerLike, counted_rounds
from keras_dp.ledger import Round


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The rounds of two ledgers, compared.

    Attributes:
        common: How many rounds both begin with.
        first_total: How many the first holds.
        second_total: How many the second holds.
        only_in_first: Kinds of rounds of which the first has more, and how
            many more, in its order.
        only_in_second: The same for the second.
    """

    common: int
    first_total: int
    second_total: int
    only_in_first: tuple[tuple[Round, int], ...]
    only_in_second: tuple[tuple[Round, int], ...]

    @property
    def is_extension(self) -> bool:
        """Whether the second is the first, and what came after."""
        return self.common == self.first_total


def difference(first: LedgerLike, second: LedgerLike) -> Difference:
    """Returns how the rounds of two ledgers differ.

    Args:
        first: An object with `rounds`, or the pairs (Round, count).
        second: The same.

    >>> from keras_dp.ledger import FullDataset, GaussianSum
    >>> each = Round(FullDataset(), (GaussianSum("all", 1.0, 4.0),))
    >>> found = difference([(each, 3)], [(each, 2), (each, 5)])
    >>> found.is_extension, found.common, found.only_in_second[0][1]
    (True, 3, 4)
    """
    one, two = tuple(counted_rounds(first)), tuple(counted_rounds(second))
    ones, twos = _counts(one), _counts(two)
    return Difference(
        common=_common(one, two),
        first_total=ones.total(),
        second_total=twos.total(),
        only_in_first=tuple((ones - twos).items()),
        only_in_second=tuple((twos - ones).items()),
    )


def _counts(pairs: tuple[tuple[Round, int], ...]) -> Counter[Round]:
    counts: Counter[Round] = Counter()
    for each, count in pairs:
        counts[each] += count
    return counts


def _common(
    first: tuple[tuple[Round, int], ...], second: tuple[tuple[Round, int], ...]
) -> int:
    """Returns the number of rounds that both sequences begin with."""
    common = 0
    ones, twos = _runs(first), _runs(second)
    for (one, count), (two, other) in zip(ones, twos, strict=False):
        if one != two:
            break
        common += min(count, other)
        if count != other:
            break
    return common


def _runs(
    pairs: tuple[tuple[Round, int], ...],
) -> Iterator[tuple[Round, int]]:
    """Yields the pairs, with equal rounds in a row counted together."""
    last: Round | None = None
    total = 0
    for each, count in pairs:
        if last is not None and each != last:
            yield last, total
            total = 0
        last, total = each, total + count
    if last is not None:
        yield last, total
