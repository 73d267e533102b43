"""Computes the epsilon of each run, alone and with the runs before it."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from keras_dp.accountants.claim import shown_epsilon
from keras_dp.accountants.normalize.correlated import with_whole_spans
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.accountants.replay import Replay, replay_of
from keras_dp.ledger import (
    CountedRound,
    PrivacyLedger,
    Round,
    RunRecord,
)
from keras_dp.reporting.document import Document, Table, Text, json_number
from keras_dp.reporting.wording import moment, on_one_line

# The number of early and of late runs whose total is computed; and of early
# ones beyond `_FEW_KINDS` kinds of rounds, where a total takes some 300 ms.
_EARLY, _LATE, _FEWEST_TOTALS, _FEW_KINDS = 20, 20, 8, 64
# The width of a name in the table.
_NAME = 30
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
    ledger: PrivacyLedger | Replay,
    *,
    delta: float,
    neighbours: Neighbours | None = None,
    units: int = 1,
) -> tuple[RunCost, ...]:
    """Returns the epsilon of each run, alone and with the runs before it.

    The totals are composed as if all rounds were fixed in advance. All epsilons
    are upper bounds. Of more than 40 runs, or 8 with many kinds of rounds, some
    have the total of a later run. By default the relation is the strongest that
    the rounds of all runs support.
    """
    replay = replay_of(ledger)
    that_count = replay.that_count(neighbours)
    of_runs, together = that_count.of_runs, that_count.together
    total = together.claim(
        delta=delta, neighbours=that_count.neighbours, units=units
    )
    of_all = total.epsilon
    if total.neighbours is None:
        return tuple(RunCost(run, math.inf, math.inf) for run in replay.runs)
    if sum(map(bool, of_runs)) == 1:
        return tuple(_alone(replay.runs, of_runs, of_all))

    def bound(rounds: Iterable[tuple[Round, int]]) -> float:
        return together.of(rounds).bound(
            delta=delta, neighbours=total.neighbours, units=units
        )

    totals = _totals(of_runs, bound, of_all)
    # Many trials have the same rounds.
    alone = _by_themselves(of_runs)
    known = {rounds: bound(rounds) for rounds in dict.fromkeys(alone)}
    epsilons = (known[rounds] for rounds in alone)
    return tuple(map(RunCost, replay.runs, epsilons, totals))


def _totals(
    of_runs: Sequence[tuple[CountedRound, ...]],
    bound: Callable[[Iterable[tuple[Round, int]]], float],
    of_all: float,
) -> list[float]:
    """Returns an upper bound for each run with those before, or `inf`."""
    kinds = len({each.round for rounds in of_runs for each in rounds})
    early, late = (
        (_EARLY, _LATE) if kinds <= _FEW_KINDS else (_FEWEST_TOTALS, 1)
    )
    size = len(of_runs)
    computed = set(range(size))
    if size > early + late:
        computed = {math.ceil(size ** (k / early)) - 1 for k in range(early)}
        computed.update(range(size - late, size))
    so_far: Counter[Round] = Counter()
    found = [math.inf] * (size - 1) + [of_all] * bool(size)
    for index, rounds in enumerate(of_runs[:-1]):
        for round_, count in rounds:
            so_far[round_] += count
        if index in computed:
            found[index] = bound(so_far.items())
    # A total is at most that of a later run.
    for index in range(size - 2, -1, -1):
        found[index] = min(found[index], found[index + 1])
    return found


def _by_themselves(
    of_runs: Sequence[tuple[CountedRound, ...]],
) -> Sequence[tuple[CountedRound, ...]]:
    """Returns the rounds of each run as if it were the only one."""
    if not any(map(_is_of_trees, chain.from_iterable(of_runs))):
        return of_runs
    alone, so_far = [], Counter[Round]()
    for rounds in of_runs:
        for round_, count in rounds:
            so_far[round_] += count
        alone.append(with_whole_spans(rounds, so_far.items()))
    return alone


def _is_of_trees(pair: CountedRound) -> bool:
    return any(query.span_id is not None for query in pair.round.queries)


def _alone(
    runs: Sequence[RunRecord],
    of_runs: Sequence[tuple[CountedRound, ...]],
    epsilon: float,
) -> Iterator[RunCost]:
    so_far = 0.0
    for run, rounds in zip(runs, of_runs, strict=True):
        so_far = epsilon if rounds else so_far
        yield RunCost(run, epsilon if rounds else 0.0, so_far)


def run_table(costs: Sequence[RunCost], notes: tuple[str, ...] = ()) -> Table:
    """Returns a table of runs, with the epsilon of each."""
    rows = []
    for cost in costs:
        rounds = f"{len(cost.run):,}"
        if cost.planned is not None and cost.planned != len(cost.run):
            rounds += f" of {cost.planned:,}"
        rows.append(
            (
                str(cost.run.number),
                _shortened(cost.name, _NAME),
                cost.state,
                rounds,
                shown_epsilon(cost.epsilon),
                shown_epsilon(cost.total_epsilon),
                _author(cost.run),
            )
        )
    states = {cost.state for cost in costs if cost.run.start is not None}
    return Table(
        "Runs, epsilon alone and of all so far",
        ("#", "run", "state", "rounds", "alone", "so far", "by"),
        tuple(rows),
        short=6,
        numbers=(0, 3, 4, 5),
        personal=(6,),
        notes=(
            *notes,
            *(
                f"({state}: {phrase})"
                for state, phrase in STATES.items()
                if state in states
            ),
        ),
    )


def _author(run: RunRecord) -> str:
    if run.start is None:
        return ""
    start, author = run.start, run.start.author
    text = (
        f"{start.purpose} by {author.user or 'somebody'}@{author.host}, "
        f"{moment(run.started)} UTC, {author.program}"
    )
    if start.account is not None:
        text += f", account {start.account}"
    if start.description:
        text += f": {start.description}"
    return text


def runs_document(
    ledger: PrivacyLedger | Replay,
    *,
    delta: float,
    neighbours: Neighbours | None = None,
    units: int = 1,
) -> Document:
    """Returns all runs with their epsilons as a document, see `run_costs`."""
    replay = replay_of(ledger)
    costs = run_costs(replay, delta=delta, neighbours=neighbours, units=units)
    what = (
        f"Epsilon at delta = {delta!r} of each run alone, and of all so far; "
        "of a run that kept to its plan, the epsilon of the plan."
    )
    return Document(
        f"Runs of {replay.header.dataset}",
        (Text("", (what,)), run_table(costs)),
        {"delta": delta, "runs": [each.as_dict() for each in costs]},
    )


def _shortened(text: str, width: int) -> str:
    """Returns a text on one line of at most `width` characters.

    >>> _shortened("a name that is long", 12)
    'a nam...long'
    """
    text = on_one_line(text)
    if len(text) <= width:
        return text
    end = (width - 3) // 2
    return f"{text[: width - 3 - end]}...{text[len(text) - end :]}"
