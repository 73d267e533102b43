"""The rounds of a ledger and their counts, which accountants read."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias, runtime_checkable

from keras_dp import _check
from keras_dp.accountants.normalize.normalized_rounds import (
    Neighbours,
    NormalizedRounds,
)
from keras_dp.ledger import Round


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


def counted_rounds(ledger: LedgerLike) -> Iterator[tuple[Round, int]]:
    """Yields the rounds of a ledger, each with its count, checked."""
    pairs = getattr(ledger, "rounds", ledger)
    if not isinstance(pairs, Iterable):
        raise TypeError(
            "`ledger` must have rounds, or hold pairs (Round, count). "
            f"Received: ledger={_check.shown(ledger)}."
        )
    for pair in pairs:
        if not (
            isinstance(pair, tuple)
            and len(pair) == 2
            and isinstance(pair[0], Round)
        ):
            raise TypeError(
                "`ledger` must have rounds, or hold pairs (Round, count). "
                f"Received: {pair!r} in ledger."
            )
        _check.integer_at_least(1, count=pair[1])
        yield pair[0], int(pair[1])


def rows_per_unit_of(ledger: LedgerLike) -> int:
    """Returns how many records one unit of a ledger has at most.

    It is 1 for pairs of a round and its count, which do not say what a unit is:
    then the unit is one record.

    Args:
        ledger: A ledger or a run says it itself.
    """
    header = getattr(ledger, "header", ledger)
    return int(getattr(header, "rows_per_unit", 1))
