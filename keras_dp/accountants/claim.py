"""Claims: an epsilon with everything that it depends on, ready to publish."""

import dataclasses
import math

from keras_dp.accountants.normalize.rounds import Neighbours


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """An upper bound on epsilon, with everything that it depends on.

    Epsilon is `inf`, and the accountant `None`, if none has a bound. The
    relation is `None` if all rounds support no common one. Epsilon protects
    `units` together, each of which has at most `rows_per_unit` records.
    """

    epsilon: float
    delta: float
    neighbours: Neighbours | None
    accountant: str | None
    units: int = 1
    rows_per_unit: int = 1

    @property
    def records(self) -> int:
        """The number of records that `epsilon` protects together."""
        return self.units * self.rows_per_unit

    def sentence(self, unit: str) -> str:
        """Returns a sentence to publish, with epsilon rounded up."""
        if self.neighbours is None:
            return "no bound: no adjacency relation is supported by all rounds"
        protected = units_in_words(unit, self.units)
        relation = f"{self.neighbours.replace('_', ' ')} {protected}"
        if self.records > 1:
            relation += f" of at most {self.records:,} records"
        if self.accountant is None:
            return (
                "no bound: no accountant has a sound bound for these rounds "
                f"({relation})"
            )
        if math.isinf(self.epsilon):
            return (
                f"no bound: epsilon is infinite at delta = {self.delta!r}, "
                f"{relation}"
            )
        return (
            f"epsilon <= {rounded_up(self.epsilon)} at delta = {self.delta!r}, "
            f"{relation}, certified by {self.accountant}"
        )


def units_in_words(unit: str, units: int) -> str:
    """Returns the unit, or the group of units, that is protected, in words."""
    return unit if units == 1 else f"group of {units:,}, each one {unit},"


def rounded_up(value: float) -> str:
    """Returns `value` with four decimals, rounded up."""
    text = f"{value:.4f}"
    return text if float(text) >= value else f"{value + 1e-4:.4f}"


def shown_epsilon(value: float) -> str:
    """Returns a bound on epsilon for people: rounded up, or "no bound"."""
    return "no bound" if math.isinf(value) else rounded_up(value)
