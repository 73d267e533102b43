"""Answers about a ledger that an audit contradicts."""

from collections.abc import Iterable, Iterator, Sequence

from keras_dp.auditing.verdicts import judgements
from keras_dp.errors import ContradictedLedgerError
from keras_dp.ledger import PrivacyLedger


def contradictions(ledger: PrivacyLedger) -> tuple[str, ...]:
    """Returns a sentence for each audit that found more than is certified."""
    return tuple(
        each.warning for each in judgements(ledger) if each.is_contradiction
    )


def failing_after(
    text: str | Iterable[str], warnings: Sequence[str]
) -> str | Iterable[str]:
    """Returns an answer that is given in full, and then fails.

    Args:
        text: The answer, or its parts.
        warnings: As `contradictions` returns them. Without any, the answer
            does not fail.
    """
    if not warnings:
        return text
    parts = [text] if isinstance(text, str) else text
    return _failing(parts, warnings)


def _failing(parts: Iterable[str], warnings: Sequence[str]) -> Iterator[str]:
    yield from parts
    yield "\n"
    raise ContradictedLedgerError(" ".join(warnings))
