"""The rounds of a ledger and their counts, which accountants read."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

from keras_dp import _check
from keras_dp.accountants.normalize.normalized_rounds import (
    NormalizedRounds,
)
from keras_dp.ledger import Round


class HasRounds(Protocol):
    """A ledger: `rounds` holds pairs of a round and its count."""

    @property
    def rounds(self) -> Iterable[tuple[Round, int]]:
        """The rounds and how often each took place."""


LedgerLike: TypeAlias = (
    HasRounds | Iterable[tuple[Round, int]] | NormalizedRounds
)


def counted_rounds(ledger: LedgerLike) -> Iterator[tuple[Round, int]]:
    """Yields the rounds of a ledger, each with its count, checked."""
    pairs = getattr(ledger, "rounds", ledger)
    if not isinstance(pairs, Iterable):
        raise TypeError(
            "`ledger` must have rounds, or hold pairs (Round, count). "
            f"Received: ledger={ledger!r}."
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
