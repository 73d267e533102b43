"""Sums up the audits of a ledger, and says which of them contradict it."""

from collections.abc import Sequence
from typing import NamedTuple

from keras_dp.auditing.verdicts import Judgement, rounded_down
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
            (each.record.statement for each in found),
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


class Answer(NamedTuple):
    """The answer of a command, with the contradictions that it found.

    Attributes:
        text: The text for the standard output.
        warnings: A sentence for each audit that contradicts the ledger.
    """

    text: str
    warnings: tuple[str, ...] = ()


def warnings_of(found: Sequence[Judgement]) -> tuple[str, ...]:
    """Returns a sentence for each audit that contradicts its ledger."""
    return tuple(each.warning for each in found if each.is_contradiction)
