"""Computes the epsilon of each run, alone and with the runs before it."""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

from keras_dp.accountants.claim import Claim, claim
from keras_dp.accountants.normalize.adjacency import (
    Neighbours,
    chosen_neighbours,
)
from keras_dp.accountants.normalize.few_kinds import can_be_rounded
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Mechanism,
)
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.normalize.normalized_rounds import (
    NormalizedRounds,
)
from keras_dp.accountants.normalize.trees import with_whole_trees
from keras_dp.budgets import rounds_that_count
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import CountedRound, Round, RunRecord, TreeSum

# So many epsilons of runs alone are computed. Each takes some 20 ms.
_MOST_ALONE = 80
# So many totals of early and of late runs, and so many in all if there are more
# kinds of rounds than the last number. Then each takes some 300 ms.
_EARLY, _LATE, _FEWEST_TOTALS, _FEW_KINDS = 20, 20, 8, 64
# More kinds than the first number are replaced by about the last one.
_MANY_KINDS = 1000
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

    The totals are composed as if all rounds were fixed in advance. All epsilons
    are upper bounds. If more than 80 runs differ, runs that are alike have the
    epsilon of rounds that cost at least as much as each of them. Of more than
    40 runs, or 8 with many kinds of rounds, some have the total of a later run.

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
    if is_one and total is not None:
        epsilon = total.epsilon if total.is_bound else math.inf
        return tuple(_alone(runs, counted, epsilon))
    bound = _Bound(delta, relation, group_size)
    totals = _totals(counted, every, bound)
    if total is not None and totals:
        totals[-1] = total.epsilon if total.is_bound else math.inf
    # A total is at most that of a later run.
    for index in range(len(totals) - 2, -1, -1):
        totals[index] = min(totals[index], totals[index + 1])
    alone = _each_alone(counted, every, bound)
    return tuple(map(RunCost, runs, alone, totals))


class _Bound(NamedTuple):
    """How the epsilon of rounds is bounded.

    Attributes:
        delta: See `run_costs`.
        neighbours: The adjacency relation.
        group_size: See `run_costs`.
    """

    delta: float
    neighbours: Neighbours
    group_size: int

    def mechanisms(
        self, rounds: tuple[CountedRound, ...]
    ) -> tuple[CountedMechanism, ...] | None:
        """Returns what the rounds are; `None` if they have no bound."""
        try:
            return normalize(rounds, self.neighbours)
        except UnsupportedEventError:
            return None

    def epsilon(self, rounds: tuple[CountedMechanism, ...] | None) -> float:
        """Returns an upper bound; `inf` if there is none."""
        if rounds is None:
            return math.inf
        whole = NormalizedRounds(self.neighbours, rounds)
        if len(whole.mechanisms) > _MANY_KINDS:
            whole = whole.merged(_FEW_KINDS)
        found = claim(whole, delta=self.delta, group_size=self.group_size)
        return found.epsilon if found.is_bound else math.inf


def _totals(
    counted: Sequence[tuple[CountedRound, ...]],
    every: Sequence[CountedRound],
    bound: _Bound,
) -> list[float]:
    """Returns an upper bound for each run with those before, or `inf`."""
    kinds = len({each.round for rounds in counted for each in rounds})
    early, late = (
        (_EARLY, _LATE) if kinds <= _FEW_KINDS else (_FEWEST_TOTALS, 1)
    )
    size = len(counted)
    computed = set(range(size))
    if size > early + late:
        computed = {math.ceil(size ** (k / early)) - 1 for k in range(early)}
        computed.update(range(size - late, size))
    so_far: Counter[Round] = Counter()
    found = [math.inf] * size
    for index, rounds in enumerate(counted):
        for round_, count in rounds:
            so_far[round_] += count
        if index in computed:
            until = tuple(so_far.items())
            found[index] = bound.epsilon(
                bound.mechanisms(with_whole_trees(until, every or until))
            )
    return found


def _each_alone(
    counted: Sequence[tuple[CountedRound, ...]],
    every: Sequence[CountedRound],
    bound: _Bound,
) -> Iterator[float]:
    """Yields an upper bound for each run, as if it were the only one."""
    alone = counted
    if any(map(_is_of_trees, chain.from_iterable(counted))):
        alone, so_far = [], Counter[Round]()
        for rounds in counted:
            for round_, count in rounds:
                so_far[round_] += count
            alone.append(with_whole_trees(rounds, every or so_far.items()))
    # Many trials have the same rounds, or the same but for names.
    mechanisms = {rounds: bound.mechanisms(rounds) for rounds in set(alone)}
    known: dict[tuple[CountedMechanism, ...] | None, float] = {}
    for alike in _alike({each for each in mechanisms.values() if each}):
        epsilon = bound.epsilon(_dominating(alike))
        known.update(dict.fromkeys(alike, epsilon))
    known |= {None: math.inf, (): 0.0}
    for rounds in alone:
        yield known[mechanisms[rounds]]


def _is_of_trees(pair: CountedRound) -> bool:
    return any(isinstance(query, TreeSum) for query in pair.round.queries)


def _alike(
    runs: Collection[tuple[CountedMechanism, ...]],
) -> Iterator[list[tuple[CountedMechanism, ...]]]:
    """Yields runs that are priced together: each by itself, if they are few.

    They have the same mechanisms but for noise and number, and are near.
    """
    if len(runs) <= _MOST_ALONE:
        yield from ([each] for each in runs)
        return
    kinds: defaultdict[tuple[Mechanism, ...], list[Any]] = defaultdict(list)
    for run in runs:
        kinds[tuple(_of_no_noise(each.mechanism) for each in run)].append(run)
    for members in kinds.values():
        size = -(-len(members) * len(kinds) // _MOST_ALONE)
        members.sort(
            key=lambda run: [
                (each.rounds, each.mechanism.noise_multiplier) for each in run
            ]
        )
        for start in range(0, len(members), size):
            yield members[start : start + size]


def _dominating(
    runs: Sequence[tuple[CountedMechanism, ...]],
) -> tuple[CountedMechanism, ...]:
    """Returns rounds that cost at least as much as each of the runs.

    Less noise is what more noise is made from, and fewer rounds are too.
    """
    return tuple(
        CountedMechanism(
            min(
                (each.mechanism for each in alike),
                key=lambda mechanism: mechanism.noise_multiplier,
            ),
            max(each.rounds for each in alike),
        )
        for alike in zip(*runs, strict=True)
    )


def _of_no_noise(mechanism: Any) -> Mechanism:
    """Returns what mechanisms that differ in their noise have in common."""
    if not can_be_rounded(mechanism):
        return cast(Mechanism, mechanism)
    replaced = dataclasses.replace(mechanism, noise_multiplier=1.0)
    return cast(Mechanism, replaced)


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
