"""The result of `check`."""

import dataclasses
from typing import Literal

Question = Literal[
    "refusal", "sensitivity", "independence", "flow", "noise", "record", "draw"
]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One way in which a training departs from its ledger.

    Attributes:
        question: The question that was asked. "refusal": the library refuses to
            train the model. "sensitivity": a record moves a sum by more than
            its bound. "independence": a record changes the contributions of
            others. "flow": data change something without a query. "noise": the
            noise is not that of the ledger. "record": the ledger would hold
            another round than is released, or its rows were changed. "draw":
            samples are not those of the sampling event.
        where: The query, variable, metric or sampler.
        message: The observation, often with a remedy.
    """

    question: Question
    where: str
    message: str

    def __str__(self) -> str:
        return f"[{self.question}] {self.where}: {self.message}"


@dataclasses.dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `check`. It depends on the records of the check.

    Attributes:
        findings: The departures from the ledger. Each question and place has at
            most one.
        exposed: The names of metrics that `fit` shows without noise. No ledger
            covers them; see `private_metrics` of `PrivateModel.compile`.
        measured: Measurements, one line each, such as the largest move of each
            sum as a share of its bound.
        not_measured: Quantities that the check could not measure, one line
            each.
    """

    findings: tuple[Finding, ...]
    exposed: tuple[str, ...]
    measured: tuple[str, ...]
    not_measured: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether there are no findings. This does not prove privacy."""
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
