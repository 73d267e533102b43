"""Compares the rounds of two ledgers."""

import dataclasses
from collections import Counter
from collections.abc import Iterator

from keras_dp.accountants.normalize.rounds import LedgerLike, counted_rounds
from keras_dp.ledger import Round


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The difference between the rounds of two ledgers.

    Attributes:
        common: The number of equal rounds with which both ledgers begin.
        first_total: The number of rounds of the first ledger.
        second_total: The number of rounds of the second ledger.
        only_in_first: Pairs of a kind of round that the first ledger has more
            of, and how many more, in the order of the first ledger.
        only_in_second: The same for the second ledger.
    """

    common: int
    first_total: int
    second_total: int
    only_in_first: tuple[tuple[Round, int], ...]
    only_in_second: tuple[tuple[Round, int], ...]

    @property
    def is_extension(self) -> bool:
        """Whether the second ledger begins with all rounds of the first."""
        return self.common == self.first_total


def difference(first: LedgerLike, second: LedgerLike) -> Difference:
    """Returns how the rounds of two ledgers differ.

    Args:
        first: An object with `rounds`, such as a `PrivacyLedger`, or pairs
            (Round, count).
        second: As `first`.

    Raises:
        TypeError: `first` or `second` is something else.

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
    """Returns the number of equal rounds with which both sequences begin."""
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
