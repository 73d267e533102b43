"""The rounds of a ledger and their epsilon: a value, as text, as JSON."""

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

from keras_dp import _check
from keras_dp.accountants import Accountant, available_accountants
from keras_dp.accountants.attacks.group_privacy import group_epsilon
from keras_dp.accountants.claim import Claim, rounded_up
from keras_dp.accountants.normalize.adjacency import (
    Neighbours,
    chosen_neighbours,
)
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    CoordinateBounds,
    CountedRound,
    NoiseDistribution,
    PrivacyLedger,
)
from keras_dp.reporting.wording import (
    UNITS_OF_ROWS,
    counted,
    described,
    on_one_line,
)

# Adaptive clipping makes every round of a run another one.
_MOST_SHOWN = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Epsilon by one accountant.

    Attributes:
        accountant: Its name.
        epsilon: An upper bound, possibly `inf`; or if `is_bound` is false an
            approximation, which may be too small.
        is_bound: Whether epsilon is a guarantee.
    """

    accountant: str
    epsilon: float
    is_bound: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Everything that `keras-dp report` prints.

    Attributes:
        dataset: Id of the data set.
        unit: The privacy unit.
        rows_per_unit: How many records one unit has at most, as declared.
        rounds: All rounds in order, equal ones in a row counted together.
        unsettled: Rounds that were reserved and never settled. They count;
            a process that died may not have run all of them.
        delta: At which epsilon is given.
        neighbours: The adjacency relation of every epsilon; None if no
            relation is supported by all rounds.
        costs: By every accountant that can replay the rounds, in the order of
            `available_accountants`; empty if none can.
        group_size: How many units every epsilon protects together.
    """

    dataset: str
    unit: str
    rows_per_unit: int
    rounds: tuple[CountedRound, ...]
    unsettled: int
    delta: float
    neighbours: Neighbours | None
    costs: tuple[Cost, ...]
    group_size: int = 1

    @property
    def total_rounds(self) -> int:
        """Number of rounds, unsettled ones included."""
        return sum(count for _, count in self.rounds)

    @property
    def records_together(self) -> int:
        """How many records every epsilon protects together."""
        return self.rows_per_unit * self.group_size

    @property
    def seeded_rounds(self) -> int:
        """Rounds whose seed the caller chose."""
        return sum(each.count for each in self.rounds if each.round.seeded)

    def as_json(self) -> str:
        """Returns a JSON object; an infinite epsilon is the text `inf`."""
        content = {
            "dataset": self.dataset,
            "unit": self.unit,
            "rows_per_unit": self.rows_per_unit,
            "group_size": self.group_size,
            "total_rounds": self.total_rounds,
            "unsettled_rounds": self.unsettled,
            "seeded_rounds": self.seeded_rounds,
            "delta": self.delta,
            "neighbours": self.neighbours,
            "epsilon": {
                cost.accountant: _json_number(cost.epsilon)
                for cost in self.costs
                if cost.is_bound
            },
            "approximate_epsilon": {
                cost.accountant: _json_number(cost.epsilon)
                for cost in self.costs
                if not cost.is_bound
            },
            "rounds": [_json_round(each) for each in self.rounds],
        }
        return json.dumps(content, indent=2)

    @property
    def claim(self) -> Claim:
        """The line to publish: the least bound, with what it depends on."""
        bounds = [cost for cost in self.costs if cost.is_bound]
        if not bounds:
            return Claim(math.inf, self.delta, self.neighbours, None)
        least = min(bounds, key=lambda cost: cost.epsilon)
        return Claim(
            least.epsilon,
            self.delta,
            self.neighbours,
            least.accountant,
            group_size=self.records_together,
        )

    def as_text(self, *, every_accountant: bool = False) -> str:
        """Returns lines for a person; epsilon is rounded up.

        Args:
            every_accountant: Whether to print epsilon by all accountants too.
        """
        lines = [*self._summary(), *self._listed_rounds()]
        if every_accountant:
            lines += self._epsilons()
        return "\n".join(lines)

    def _summary(self) -> Iterator[str]:
        unit = on_one_line(self.unit)
        if self.group_size > 1:
            unit = f"group of {self.group_size:,}, each one {unit},"
        yield self.claim.sentence(unit)
        yield (
            f"Data set {on_one_line(self.dataset)}, privacy unit: "
            f"{self._unit()}"
        )
        yield counted(self.total_rounds, "round")
        if self.unsettled:
            yield (
                f"  {self.unsettled:,} of them reserved and not settled: a "
                "process is running, or died; they count"
            )
        if self.seeded_rounds:
            yield (
                f"  {self.seeded_rounds:,} of them with a seed the caller "
                "chose: private only towards those who cannot know it"
            )

    def _unit(self) -> str:
        """Returns the unit, and what is taken for granted of it."""
        unit = on_one_line(self.unit)
        if self.unit in UNITS_OF_ROWS:
            return unit
        rows = (
            "one row"
            if self.rows_per_unit == 1
            else (f"at most {self.rows_per_unit:,} rows")
        )
        return f"{unit} ({rows} each: declared, not checked)"

    def _listed_rounds(self) -> Iterator[str]:
        shown = self.rounds
        if len(shown) > _MOST_SHOWN:
            shown = (*shown[: _MOST_SHOWN - 1], shown[-1])
        for index, (round_, count) in enumerate(shown):
            if len(shown) < len(self.rounds) and index == len(shown) - 1:
                left_out = self.rounds[len(shown) - 1 : -1]
                yield (
                    f"  {sum(count for _, count in left_out):,} rounds of "
                    f"{len(left_out):,} other kinds, which --json shows"
                )
            yield f"  {count:,} x {round_.sampling!r}"
            for query in round_.queries:
                yield f"      {described(query)}"

    def _epsilons(self) -> Iterator[str]:
        yield f"Epsilon at delta = {self.delta!r}:"
        if self.neighbours is None:
            yield "  none: no adjacency relation is supported by all rounds"
            return
        relation = self.neighbours.replace("_", " ")
        if self.records_together > 1:
            relation += f", {self.records_together:,} records together"
        if not self.costs:
            yield (
                "  none: no accountant has a sound bound for these rounds "
                f"({relation})"
            )
        width = max((len(cost.accountant) for cost in self.costs), default=0)
        for cost in self.costs:
            epsilon = f"epsilon <= {rounded_up(cost.epsilon)}"
            if not cost.is_bound:
                epsilon = (
                    f"epsilon is about {rounded_up(cost.epsilon)}, which is "
                    "no bound"
                )
            yield f"  {cost.accountant:<{width}}  {epsilon} ({relation})"


def make_report(
    ledger: PrivacyLedger,
    *,
    delta: float,
    neighbours: Neighbours | None = None,
    accountants: tuple[Accountant, ...] | None = None,
    group_size: int = 1,
) -> Report:
    """Returns the report of a ledger.

    Args:
        ledger: To be replayed.
        delta: In [0, 1].
        neighbours: The adjacency relation; by default the strongest that
            all rounds support.
        accountants: Which to ask; by default all that can replay the ledger.
        group_size: How many units epsilon protects together, >= 1.

    Raises:
        UnsupportedEventError: One of the given accountants has no bound for a
            round. Without given ones, the report says that there is none.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> ledger = PrivacyLedger.in_memory(dataset="paper")
    >>> ledger.record(PoissonSampling(0.01),
    ...               [GaussianSum("gradients", 1.0, 4.0)], count=10_000)
    >>> print(make_report(ledger, delta=1e-5).as_text())
    epsilon <= 0.9469 at delta = 1e-05, add or remove one example, certified ...
    Data set paper, privacy unit: example
    10,000 rounds
      10,000 x PoissonSampling(probability=0.01, drawn_by_library=False)
          gradients: Gaussian sum, bound 1, noise stddev 4 (multiplier 4)
    """
    _check.integer_at_least(1, group_size=group_size)
    rounds = ledger.rounds
    relation = _relation(rounds, neighbours)
    if accountants is None:
        accountants = ()
        if relation is not None:
            accountants = available_accountants(rounds, neighbours=relation)
    return Report(
        dataset=ledger.header.dataset,
        unit=ledger.header.unit,
        rows_per_unit=ledger.header.rows_per_unit,
        rounds=rounds,
        unsettled=ledger.unsettled,
        delta=float(delta),
        neighbours=relation,
        costs=tuple(
            Cost(
                each.name,
                group_epsilon(
                    rounds,
                    group_size=ledger.header.rows_per_unit * group_size,
                    delta=delta,
                    accountant=each,
                    neighbours=relation,
                ).epsilon,
                each.is_bound,
            )
            for each in accountants
        ),
        group_size=int(group_size),
    )


def _relation(
    rounds: tuple[CountedRound, ...], neighbours: Neighbours | None
) -> Neighbours | None:
    """Returns the given relation, else the strongest one, None without any."""
    try:
        return chosen_neighbours(rounds, neighbours)
    except UnsupportedEventError:
        return None


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"


def _json_round(each: CountedRound) -> dict[str, Any]:
    return {
        "count": each.count,
        "seeded": each.round.seeded,
        "sampling": _json_event(each.round.sampling),
        "queries": [_json_event(query) for query in each.round.queries],
    }


def _json_event(event: Any) -> dict[str, Any]:
    content = {"event": type(event).__name__}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if isinstance(value, CoordinateBounds):
            value = {
                "vectors": len(value.level_array()),
                "dimension": value.dimension,
                "largest_l2_norm": value.largest_l2_norm,
            }
        elif isinstance(value, NoiseDistribution):
            own = dataclasses.asdict(value)
            value = {"family": type(value).__name__, **own}
        content[field.name] = value
    return content
