"""Trees and mechanisms with correlated noise, whose rounds have one cost.

Each is one Gaussian release, with the sensitivity of a record that takes part
in some of its rounds. Those that share no epoch of disjoint batches add their
squares. Those that share epochs can do better: in an epoch a record is in one
round, and moves what was released of this round. The most that this can be,
summed over the epochs, bounds them together, by the triangle inequality. The
smaller of the two bounds counts.
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from keras_dp.accountants.normalize.participations import Sensitivity
from keras_dp.ledger import CountedRound, Round


class Span(NamedTuple):
    """How far a record moves a tree or a mechanism, in noise.

    Attributes:
        once: At most, by one participation.
        lower: A record reaches it, whatever else is released; 0 if none is
            known to.
        upper: At most, in all rounds that it takes part in.
        in_all: Whether these are all rounds.
    """

    once: float
    lower: float
    upper: float
    in_all: bool = False


class SpanRound(NamedTuple):
    """A kind of round.

    Attributes:
        names: The trees and mechanisms that it is a part of.
        epoch: The pass over the data in which a record takes part in one
            round at most; `None` if it can take part in all.
    """

    names: frozenset[str]
    epoch: str | None


def together(
    rounds: Collection[SpanRound], spans: Mapping[str, Span]
) -> Iterator[Sensitivity]:
    """Yields the sensitivities of Gaussian releases that cover all spans.

    Args:
        rounds: The kinds of rounds, each a part of at least one span.
        spans: The trees and mechanisms, by name.
    """
    paths: defaultdict[str | None, float] = defaultdict(float)
    for names, epoch in rounds:
        path = math.hypot(*(spans[name].once for name in names))
        paths[epoch] = max(paths[epoch], path)
    for parts in _groups(rounds):
        epochs = {each.epoch for each in parts}
        own = frozenset().union(*(each.names for each in parts))
        upper = math.hypot(*(spans[name].upper for name in own))
        if None not in epochs:
            upper = min(upper, math.fsum(paths[each] for each in epochs))
        lowers = [spans[name].lower for name in own]
        # In every round, a record reaches all. Who reaches one of them in some
        # need not be where another is reached, which can only add to it.
        in_all = all(spans[name].in_all and spans[name].lower for name in own)
        lower = math.hypot(*lowers) if in_all else max(lowers)
        if upper:
            yield Sensitivity(min(lower, upper), upper)


def _groups(rounds: Collection[SpanRound]) -> Iterable[list[SpanRound]]:
    """Returns rounds of spans that share rounds or epochs."""
    parents: dict[object, object] = {}

    def root(node: object) -> object:
        parents.setdefault(node, node)
        while parents[node] != node:
            parents[node] = node = parents[parents[node]]
        return node

    for each in rounds:
        for name in each.names:
            parents[root(name)] = root(each)
        if each.epoch is not None:
            parents[root((each.epoch,))] = root(each)
    groups: defaultdict[object, list[SpanRound]] = defaultdict(list)
    for each in rounds:
        groups[root(each)].append(each)
    return groups.values()


def with_whole_spans(
    some: Iterable[tuple[Round, int]], every: Iterable[tuple[Round, int]]
) -> tuple[CountedRound, ...]:
    """Returns some rounds, and the others of their trees and mechanisms.

    The release of one of these rounds depends on earlier ones. So they cost
    what their trees and mechanisms cost.

    Args:
        some: Rounds of a ledger, such as those of one run.
        every: All rounds of the ledger, or all until then.
    """
    rounds = tuple(CountedRound(*pair) for pair in some)
    names = {
        query.span_id
        for round_, _ in rounds
        for query in round_.queries
        if query.span_id is not None
    }
    if not names:
        return rounds
    left: Counter[Round] = Counter()
    for pairs, sign in ((every, 1), (rounds, -1)):
        for round_, count in pairs:
            left[round_] += sign * count
    others: list[CountedRound] = []
    for round_, count in (+left).items():
        leaves = tuple(
            query for query in round_.queries if query.span_id in names
        )
        if leaves:
            part = dataclasses.replace(round_, queries=leaves)
            others.append(CountedRound(part, count))
    return (*rounds, *others)
