"""Answers about a ledger that an audit contradicts."""

from collections.abc import Iterable, Iterator, Sequence

from keras_dp.errors import ContradictedLedgerError


def failing_after(
    text: str | Iterable[str], contradictions: Sequence[str]
) -> str | Iterable[str]:
    """Returns an answer that is given in full, and then fails.

    Args:
        text: The answer, or its parts.
        contradictions: A sentence for each audit that found more than the
            ledger certifies. Without any, the answer does not fail.
    """
    if not contradictions:
        return text
    parts = [text] if isinstance(text, str) else text
    return _failing(parts, contradictions)


def _failing(
    parts: Iterable[str], contradictions: Sequence[str]
) -> Iterator[str]:
    yield from parts
    yield "\n"
    raise ContradictedLedgerError(" ".join(contradictions))
