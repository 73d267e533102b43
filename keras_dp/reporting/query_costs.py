"""Computes the epsilon of each query of a ledger as if it were alone."""

import math
from collections import defaultdict
from typing import NamedTuple

from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.normalize.rounds import LedgerLike
from keras_dp.accountants.replay import bounded_epsilon, replay_of
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import Round

# If there are more noises, they are rounded down in steps of less than 1 %.
_MOST_KINDS = 1000
# If there are more names, those with the same text before a slash are one.
_MOST_NAMES = 8
TOGETHER, OTHERS = "all together", "all others"


class QueryCost(NamedTuple):
    """The epsilon of one query, or of several together.

    Attributes:
        name: The name of the query; several have the beginning of their names.
        epsilon: An upper bound on epsilon; `inf` if there is none.
        is_total: Whether `epsilon` is for all queries together.
    """

    name: str
    epsilon: float
    is_total: bool = False


def query_costs(
    ledger: LedgerLike,
    *,
    delta: float,
    neighbours: Neighbours | None = None,
    units: int = 1,
) -> tuple[QueryCost, ...]:
    """Returns the epsilon of each query as if nothing else had been released.

    Each epsilon is a bound against an attacker who sees the answers of this
    query alone. They do not add up to the last one, which is for all queries
    together.

    Args:
        ledger: A ledger, a run, pairs of a Round and its count, or a replay.
        delta: The delta of each epsilon, in [0, 1].
        neighbours: The adjacency relation; by default the strongest that all
            rounds support.
        units: The number of units that epsilon protects together, >= 1. A unit
            has `rows_per_unit` records if `ledger` says so, else one.

    Returns:
        The costs by falling epsilon, and the cost of all queries together at
        the end. If there are more than 8 names, those with the same text before
        the first slash become one. If more than 8 are left, the last ones
        become one.

    Raises:
        ValueError: An argument is out of its range.

    >>> from keras_dp.ledger import FullDataset, GaussianSum
    >>> sums = GaussianSum("gradients", 1.0, 4.0), GaussianSum("loss", 1.0, 20.)
    >>> costs = query_costs([(Round(FullDataset(), sums), 1)], delta=1e-5)
    >>> [(each.name, round(each.epsilon, 3)) for each in costs]
    [('gradients', 0.926), ('loss', 0.16), ('all together', 0.946)]
    """
    replay = replay_of(ledger)
    names = {query.name for each, _ in replay.rounds for query in each.queries}
    try:
        relation = replay.relation(neighbours)
    except UnsupportedEventError:
        return (QueryCost(TOGETHER, math.inf, is_total=True),)

    def cost(members: set[str]) -> float:
        if members == names:
            return replay.claim(
                delta=delta, neighbours=relation, units=units
            ).epsilon
        alone = []
        for each, count in replay.rounds:
            queries = tuple(q for q in each.queries if q.name in members)
            if queries:
                alone.append((Round(each.sampling, queries), count))
        try:
            rounds = replay.of(alone).normalized(relation).merged(_MOST_KINDS)
        except UnsupportedEventError:
            return math.inf
        return bounded_epsilon(rounds, delta=delta, units=units)

    groups = _groups(names)
    found = [QueryCost(name, cost(members)) for name, members in groups.items()]
    found.sort(key=lambda each: (-each.epsilon, each.name))
    if len(found) > _MOST_NAMES:
        kept = found[: _MOST_NAMES - 1]
        left = names - {name for each in kept for name in groups[each.name]}
        found = [*kept, QueryCost(OTHERS, cost(left))]
    return (*found, QueryCost(TOGETHER, cost(names), is_total=True))


def _groups(names: set[str]) -> dict[str, set[str]]:
    """Returns the names of queries by the name under which they are shown."""
    if len(names) <= _MOST_NAMES:
        return {name: {name} for name in names}
    groups = defaultdict(set)
    for name in names:
        top, slash, _ = name.partition("/")
        groups[f"{top}/..." if slash else name].add(name)
    return groups
