"""The rounds of a ledger and their counts, which accountants read."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeAlias

from absl import logging

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


def warn_of_units(ledger: LedgerLike, group_size: int = 1) -> None:
    """Logs a warning if a number will be for one of a unit's records.

    Args:
        ledger: A `PrivacyLedger` says how many records a unit has at most;
            its `rounds`, which say nothing of units, are never warned of.
        group_size: How many records the number will be for.
    """
    header: Any = getattr(ledger, "header", None)
    rows = 1 if header is None else header.rows_per_unit
    if group_size == 1 < rows:
        logging.warning(
            "The number is for one record, and the ledger says that one %s has "
            "up to %d of them. Ask for all of them by group_size=%d, as "
            "accountants.group_epsilon takes it; or pass ledger.rounds for one "
            "record.",
            header.unit,
            rows,
            rows,
        )
