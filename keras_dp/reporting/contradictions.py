"""Sums up the audits of a ledger, and warns of contradictions."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from keras_dp.auditing.verdicts import Judgement, judgements, rounded_down
from keras_dp.errors import ContradictedLedgerError
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.wording import counted


class AuditSummary(NamedTuple):
    """Sums up all audits of a ledger.

    Attributes:
        verdicts: The number of verdicts.
        contradictions: The number of verdicts that contradict the ledger.
        epsilon: The largest lower bound of the verdicts; 0 without verdicts.
        delta: The delta of this lower bound; 0 without verdicts.
        confidence: The confidence of this lower bound, in (0, 1); 0 without
            verdicts.
    """

    verdicts: int
    contradictions: int
    epsilon: float
    delta: float
    confidence: float

    @classmethod
    def of(cls, found: Sequence[Judgement]) -> "AuditSummary":
        """Returns the summary of verdicts, which may be none."""
        if not found:
            return cls(0, 0, 0.0, 0.0, 0.0)
        verdict = max(
            (each.record.verdict for each in found),
            key=lambda each: each.epsilon,
        )
        return cls(
            len(found),
            sum(each.is_contradiction for each in found),
            verdict.epsilon,
            verdict.delta,
            verdict.confidence,
        )

    @property
    def sentence(self) -> str:
        """One line: their number, whether they agree, and the lower bound."""
        if not self.verdicts:
            return "Audits: none. Nothing tested what this ledger says."
        agrees = "none contradicts the ledger"
        if self.contradictions:
            verb = "CONTRADICTS" if self.contradictions == 1 else "CONTRADICT"
            agrees = f"{self.contradictions:,} {verb} THE LEDGER"
        return (
            f"Audits: {counted(self.verdicts, 'verdict')}, {agrees}; the "
            f"largest lower bound is epsilon >= {rounded_down(self.epsilon)} "
            f"at delta = {self.delta!r}, with {100 * self.confidence:.6g} % "
            "confidence."
        )


def audited(ledger: PrivacyLedger) -> tuple[str, tuple[str, ...]]:
    """Returns a line about all audits, and a sentence for each contradiction.

    Args:
        ledger: The ledger, with its verdicts.
    """
    found = judgements(ledger)
    warnings = tuple(each.warning for each in found if each.is_contradiction)
    return AuditSummary.of(found).sentence, warnings


def contradictions(ledger: PrivacyLedger) -> tuple[str, ...]:
    """Returns a sentence for each audit that contradicts a ledger.

    Args:
        ledger: The ledger, with its verdicts.
    """
    return tuple(
        each.warning for each in judgements(ledger) if each.is_contradiction
    )


def failing_after(
    text: str | Iterable[str], warnings: Sequence[str]
) -> str | Iterable[str]:
    """Returns an answer that raises after its last part.

    Args:
        text: The answer, or its parts.
        warnings: The sentences that `contradictions` returned. Without any, the
            answer is returned as it is.

    Returns:
        The answer, or an iterator over its parts, which raises
        `ContradictedLedgerError` at its end.
    """
    if not warnings:
        return text
    parts = [text] if isinstance(text, str) else text
    return _failing(parts, warnings)


def _failing(parts: Iterable[str], warnings: Sequence[str]) -> Iterator[str]:
    yield from parts
    yield "\n"
    raise ContradictedLedgerError(" ".join(warnings))
