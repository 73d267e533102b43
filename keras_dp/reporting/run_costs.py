"""Computes the epsilon of each run, alone and with the runs before it."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from keras_dp.accountants.claim import Claim, claim
from keras_dp.accountants.normalize.adjacency import (
    Neighbours,
    chosen_neighbours,
)
from keras_dp.accountants.normalize.trees import with_whole_trees
from keras_dp.budgets import rounds_that_count
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import CountedRound, Round, RunRecord

# Explanations of those states of runs that one word does not explain.
STATES = {
    "stopped": "ended before its plan did, perhaps because of what was seen",
    "budget": "ended because a target or an account left no room",
    "failed": "ended by an exception",
    "died": "its process is gone, and did not end the run",
    "unknown": "its process runs on another machine, or died",
}


class RunCost(NamedTuple):
    """A run with its epsilon.

    Attributes:
        run: The run, as the ledger holds it.
        epsilon: The epsilon of the run as if nothing else had been released;
            `inf` without a bound. It is for the plan if the run kept to its
            plan, otherwise for its rounds; and for a tree from its beginning.
        total_epsilon: The epsilon of this run and all runs before it, together.
    """

    run: RunRecord
    epsilon: float
    total_epsilon: float

    @property
    def state(self) -> str:
        """The state: "finished", "running", "planned", or one of `STATES`."""
        outcome = self.run.outcome
        return self.run.state if outcome is None else outcome

    @property
    def name(self) -> str:
        """The name of the run, or a phrase for rounds that belong to no run."""
        return self.run.name or "rounds without a run"

    @property
    def planned(self) -> int | None:
        """The number of rounds that were planned; `None` without a plan."""
        if self.run.plan is None:
            return None
        return sum(count for _, count in self.run.plan)

    def as_dict(self) -> dict[str, Any]:
        """Returns the run as values that JSON can hold."""
        run, start = self.run, self.run.start
        content: dict[str, Any] = {
            "number": run.number,
            "name": run.name,
            "state": self.state,
            "rounds": len(run),
            "planned_rounds": self.planned,
            "unsettled_rounds": run.unsettled,
            "epsilon": json_number(self.epsilon),
            "total_epsilon": json_number(self.total_epsilon),
        }
        if start is not None:
            author = start.author
            content |= {
                "purpose": start.purpose,
                "description": start.description,
                "account": start.account,
                "model": start.model,
                "started": run.started,
                "updated": run.updated,
                "user": author.user,
                "host": author.host,
                "program": author.program,
                "program_hash": author.program_hash,
                "versions": dict(author.versions),
            }
        return content


def run_costs(
    runs: Sequence[RunRecord],
    *,
    delta: float,
    neighbours: Neighbours | None = None,
    group_size: int = 1,
    total: Claim | None = None,
    every: Sequence[CountedRound] = (),
) -> tuple[RunCost, ...]:
    """Returns the epsilon of each run, alone and with the runs before it.

    The totals are composed as if all rounds were fixed in advance.

    Args:
        runs: Runs of `PrivacyLedger.runs`, in their order.
        delta: The delta of each epsilon, in (0, 1).
        neighbours: The adjacency relation; by default the strongest that the
            rounds of all runs support.
        group_size: The number of records that epsilon protects together, >= 1.
        total: The claim for all runs together, if it was computed before.
        every: All rounds of the ledger, if `runs` are only some of its runs.

    Raises:
        ValueError: An argument is out of its range.

    >>> from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> for name in ("ages", "incomes"):
    ...     with ledger.start_run(name, purpose="statistics") as run:
    ...         run.record(FullDataset(), [GaussianSum("sum", 1.0, 4.0)])
    >>> [(each.name, round(each.epsilon, 3), round(each.total_epsilon, 3))
    ...  for each in run_costs(ledger.runs, delta=1e-5)]
    [('ages', 0.926, 0.926), ('incomes', 0.926, 1.356)]
    """
    that_count = rounds_that_count(runs, neighbours)
    counted, together = that_count.of_runs, that_count.together
    is_one = sum(map(bool, counted)) == 1
    if is_one and total is None:
        total = claim(
            with_whole_trees(together, every),
            delta=delta,
            neighbours=that_count.neighbours,
            group_size=group_size,
        )
    relation = that_count.neighbours if total is None else total.neighbours
    if relation is None:
        return tuple(RunCost(run, math.inf, math.inf) for run in runs)
    known: dict[frozenset[tuple[Round, int]], float] = {}
    if total is not None:
        if is_one:
            epsilon = total.epsilon if total.is_bound else math.inf
            return tuple(_alone(runs, counted, epsilon))
        known[frozenset(_counts(together).items())] = total.epsilon

    def cost(counts: Counter[Round]) -> float:
        # Many trials have the same rounds.
        key = frozenset(counts.items())
        if key not in known:
            found = claim(
                counts.items(),
                delta=delta,
                neighbours=relation,
                group_size=group_size,
            )
            known[key] = found.epsilon if found.is_bound else math.inf
        return known[key]

    so_far: Counter[Round] = Counter()
    found = []
    for run, rounds in zip(runs, counted, strict=True):
        so_far += _counts(rounds)
        alone, until = (
            _counts(with_whole_trees(some, every or so_far.items()))
            for some in (rounds, so_far.items())
        )
        found.append(RunCost(run, cost(alone), cost(until)))
    return tuple(found)


def _alone(
    runs: Sequence[RunRecord],
    counted: Sequence[tuple[CountedRound, ...]],
    epsilon: float,
) -> Iterator[RunCost]:
    """Yields the costs of runs if only one of them has rounds."""
    so_far = 0.0
    for run, rounds in zip(runs, counted, strict=True):
        so_far = epsilon if rounds else so_far
        yield RunCost(run, epsilon if rounds else 0.0, so_far)


def states_in_words(costs: Sequence[RunCost]) -> tuple[str, ...]:
    """Returns a phrase for each state that needs an explanation."""
    states = {cost.state for cost in costs if cost.run.start is not None}
    return tuple(
        f"{state}: {phrase}"
        for state, phrase in STATES.items()
        if state in states
    )


def chosen_relation(
    rounds: Iterable[tuple[Round, int]], neighbours: Neighbours | None
) -> Neighbours | None:
    """Returns the given relation or the strongest one; `None` without any."""
    try:
        return chosen_neighbours(rounds, neighbours)
    except UnsupportedEventError:
        return None


def json_number(value: float) -> float | str:
    """Returns a finite number as it is, and infinity as the text `inf`."""
    return value if math.isfinite(value) else "inf"


def _counts(rounds: Iterable[tuple[Round, int]]) -> Counter[Round]:
    counts: Counter[Round] = Counter()
    for round_, count in rounds:
        counts[round_] += count
    return counts
