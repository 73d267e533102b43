"""The result of a check, in words."""

import dataclasses
from typing import Literal

Question = Literal[
    "refusal", "sensitivity", "independence", "flow", "noise", "record", "draw"
]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One way in which a training does not keep to its ledger.

    Attributes:
        question: The question that it answers: "refusal" (the library does
            not train it), "sensitivity" (a record moves a sum by more than its
            bound), "independence" (a record changes what others contribute),
            "flow" (something follows the data past the queries), "noise",
            "record" (the ledger says something else) or "draw" (of the
            sampler).
        where: The query, variable or metric.
        message: The observation, and the remedy.
    """

    question: Question
    where: str
    message: str

    def __str__(self) -> str:
        return f"[{self.question}] {self.where}: {self.message}"


@dataclasses.dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `check`. It depends on the records that it was run on.

    Attributes:
        findings: Every way in which the ledger's promise is not kept.
        exposed: Names of metrics that `fit` shows without noise, which no
            ledger covers; see `private_metrics` of `PrivateModel.compile`.
        measured: Measurements, a line each: how near each query came to
            its bound, for instance.
        not_measured: Things that the check could not look at, a line each.
    """

    findings: tuple[Finding, ...]
    exposed: tuple[str, ...]
    measured: tuple[str, ...]
    not_measured: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was found. That is no proof of privacy."""
        return not self.findings

    def __str__(self) -> str:
        count = len(self.findings)
        head = (
            "No violation was found."
            if self.passed
            else f"{count} violation{'s' if count > 1 else ''}:"
        )
        lines = [head, *(f"  {each}" for each in self.findings)]
        if self.exposed:
            lines.append(
                "Shown without noise, and in no ledger: "
                f"{', '.join(self.exposed)}. Do not publish them."
            )
        lines += [f"Measured: {line}" for line in self.measured]
        lines += [f"Not measured: {line}" for line in self.not_measured]
        return "\n".join(lines)
