"""What a ledger holds and what it cost, as a value, as text and as JSON."""

import dataclasses
import json
import math
from typing import Any

from keras_dp.accountants import Accountant, available_accountants
from keras_dp.accountants.normalize.normalize import Neighbours
from keras_dp.ledger import (
    CoordinateBounds,
    CountedRound,
    DiscreteGaussianSum,
    EncodedSum,
    GaussianSum,
    NoiseDistribution,
    PrivacyLedger,
    SumQueryEvent,
    TreeSum,
)

# Adaptive clipping makes every round of a run another one.
_MOST_SHOWN = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """What one accountant says.

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
    """Everything `keras-dp report` prints.

    Attributes:
        dataset: Id of the data set.
        unit: The privacy unit.
        rounds: What happened, equal neighbouring rounds counted.
        unsettled: Rounds that were reserved and never settled. They count;
            a process that died may not have run all of them.
        delta: At which epsilon is given.
        neighbours: The neighbouring relation.
        costs: By every accountant that can replay the rounds, in the order of
            `available_accountants`; empty if none can.
    """

    dataset: str
    unit: str
    rounds: tuple[CountedRound, ...]
    unsettled: int
    delta: float
    neighbours: Neighbours
    costs: tuple[Cost, ...]

    @property
    def total_rounds(self) -> int:
        """Number of rounds, unsettled ones included."""
        return sum(count for _, count in self.rounds)

    @property
    def seeded_rounds(self) -> int:
        """Rounds whose seed the caller chose."""
        return sum(each.count for each in self.rounds if each.round.seeded)

    def as_json(self) -> str:
        """Returns a JSON object; an infinite epsilon is the text `inf`."""
        content = {
            "dataset": self.dataset,
            "unit": self.unit,
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

    def as_text(self) -> str:
        """Returns lines for a person; epsilon is rounded up."""
        lines = [
            f"Data set {_on_one_line(self.dataset)}, privacy unit: "
            f"{_on_one_line(self.unit)}",
            f"{self.total_rounds:,} rounds",
        ]
        if self.unsettled:
            lines.append(
                f"  {self.unsettled:,} of them reserved and not settled: a "
                "process is running, or died; they count"
            )
        if self.seeded_rounds:
            lines.append(
                f"  {self.seeded_rounds:,} of them with a seed the caller "
                "chose: private only towards those who cannot know it"
            )
        shown = self.rounds
        if len(shown) > _MOST_SHOWN:
            shown = (*shown[: _MOST_SHOWN - 1], shown[-1])
        for index, (round_, count) in enumerate(shown):
            if len(shown) < len(self.rounds) and index == len(shown) - 1:
                left_out = self.rounds[len(shown) - 1 : -1]
                lines.append(
                    f"  {sum(count for _, count in left_out):,} rounds of "
                    f"{len(left_out):,} other kinds, which --json shows"
                )
            lines.append(f"  {count:,} x {round_.sampling!r}")
            lines += [f"      {_described(query)}" for query in round_.queries]
        relation = self.neighbours.replace("_", " ")
        lines.append(f"Cost at delta = {self.delta!r} ({relation}):")
        if not self.costs:
            lines.append(
                "  no accountant has a sound bound for these rounds under this "
                "relation"
            )
        width = max((len(cost.accountant) for cost in self.costs), default=0)
        lines += [
            f"  {cost.accountant:<{width}}  epsilon "
            f"{'<=' if cost.is_bound else 'is about'} "
            f"{_rounded_up(cost.epsilon)}"
            f"{'' if cost.is_bound else ', which is no bound'}"
            for cost in self.costs
        ]
        return "\n".join(lines)


def make_report(
    ledger: PrivacyLedger,
    *,
    delta: float,
    neighbours: Neighbours = "add_or_remove_one",
    accountants: tuple[Accountant, ...] | None = None,
) -> Report:
    """Returns the report of a ledger.

    Args:
        ledger: To be replayed.
        delta: In [0, 1].
        neighbours: The neighbouring relation.
        accountants: Which to ask; by default all that can replay the ledger.

    >>> from keras_dp.ledger import PoissonSampling
    >>> ledger = PrivacyLedger.in_memory(dataset="paper")
    >>> ledger.record(PoissonSampling(0.01),
    ...               [GaussianSum("gradients", 1.0, 4.0)], count=10_000)
    >>> print(make_report(ledger, delta=1e-5).as_text())
    Data set paper, privacy unit: example
    10,000 rounds
      10,000 x PoissonSampling(probability=0.01, drawn_by_library=False)
          gradients: Gaussian sum, bound 1, noise stddev 4 (multiplier 4)
    Cost at delta = 1e-05 (add or remove one):
    ...
    """
    rounds = ledger.rounds
    if accountants is None:
        accountants = available_accountants(rounds, neighbours=neighbours)
    return Report(
        dataset=ledger.header.dataset,
        unit=ledger.header.unit,
        rounds=rounds,
        unsettled=ledger.unsettled,
        delta=float(delta),
        neighbours=neighbours,
        costs=tuple(
            Cost(
                each.name,
                each.epsilon(rounds, delta=delta, neighbours=neighbours),
                each.is_bound,
            )
            for each in accountants
        ),
    )


def _described(query: SumQueryEvent) -> str:
    known = GaussianSum | DiscreteGaussianSum | TreeSum | EncodedSum
    if not isinstance(query, known):
        return repr(query)
    name = _on_one_line(query.name)
    if isinstance(query, EncodedSum):
        return f"{name}: encoded sum, {query.bounds!r}, {query.noise!r}"
    if isinstance(query, DiscreteGaussianSum):
        kind, noise = "discrete Gaussian sum", query.noise_scale
    else:
        kind, noise = "Gaussian sum", query.noise_stddev
    if isinstance(query, TreeSum):
        tree = _on_one_line(query.tree_id)
        kind = f"Gaussian nodes of tree {tree}"
    ratio = math.inf
    if query.l2_norm_bound > 0:
        ratio = noise / query.l2_norm_bound
    return (
        f"{name}: {kind}, bound {query.l2_norm_bound:g}, noise stddev "
        f"{noise:g} (multiplier {ratio:.4g})"
    )


def _on_one_line(text: str) -> str:
    """Escapes what could pass for a line of the report, or move the cursor."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _rounded_up(epsilon: float) -> str:
    """Returns four decimals that are not below `epsilon`."""
    text = f"{epsilon:.4f}"
    return text if float(text) >= epsilon else f"{epsilon + 1e-4:.4f}"


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
