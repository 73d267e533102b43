"""Mechanisms with correlated noise, and samples of classes in turn.

A mechanism costs what its whole strategy costs, whether all of its rounds ran
or not. What a record takes part in follows from the sampling of its rounds:

| Sampling of its rounds | A record takes part |
| --- | --- |
| CyclicPoissonSampling, one draw, cycle after cycle | once in a cycle |
| DisjointBatches | once an epoch |
| any other, or several of them | in every round |

*Without amplification* the mechanism is one Gaussian, whose sensitivity is that
of `participations` (docs/accounting.md, Theorem 1).

*With amplification.* Fix the class of a record: joint convexity takes the
mixture over classes away. If C has at most as many bands as there are classes,
the rounds of the class have disjoint rows of C. Given all answers before, those
of one round differ by the column of C times the vector of this round, if the
record took part, which a coin of its own decides. So each cycle is a Poisson
round with the norm of the largest column as sensitivity (docs/accounting.md,
Theorem 2). Other Gaussian sums over the sample of the round see the same coin,
and add their squares. The sampler keeps the class a secret: a lower bound may
not know it. The sum of the rounds of a cycle holds a record of any class.

Where every record takes part in the round of its class, nothing is amplified.

*Together.* Each is one Gaussian release, with the sensitivity of a record that
takes part in some of its rounds. Those that share no epoch of disjoint batches
add their squares. Those that share epochs can do better: in an epoch a record
is in one round, and moves what was released of this round. The most that this
can be, summed over the epochs, bounds them together, by the triangle
inequality. The smaller of the two bounds counts.
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from keras_dp.accountants.normalize.mechanisms import (
    Mechanism,
)
from keras_dp.accountants.normalize.participations import (
    Sensitivity,
    column_norm,
    is_banded,
    is_toeplitz,
    largest_column_norm,
    sensitivity_of_classes,
    sensitivity_of_epochs,
)
from keras_dp.accountants.normalize.release import Release, ratio
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.accountants.normalize.samplings import (
    cyclic,
    gaussian_between,
)
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    CorrelatedSum,
    CountedRound,
    CyclicPoissonSampling,
    DisjointBatches,
    FullDataset,
    Round,
    SamplingByContents,
    SamplingEvent,
    Strategy,
    UnverifiedSampling,
)


class Span(NamedTuple):
    """How far a record moves a mechanism, in noise.

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
    """A kind of round, and the mechanisms that it is a part of.

    In an epoch a record takes part in one round at most; without one it can
    take part in all.
    """

    names: frozenset[str]
    epoch: str | None


def sensitivities_of(
    rounds: Collection[SpanRound], spans: Mapping[str, Span]
) -> Iterator[Sensitivity]:
    """Yields the sensitivities of Gaussian releases that cover all spans."""
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
    """Returns some rounds of a ledger, and the others of their mechanisms.

    The release of one of these rounds depends on earlier ones. So they cost
    what their mechanisms cost.
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


class _Mechanism(NamedTuple):
    """A whole mechanism: its rounds may differ in their bounds and noise.

    Attributes:
        ran: How many of its rounds, from the first on, a record is known to be
            able to reach: those that ran; 0 if they differ.
        begins: The cycle of its first round.
    """

    strategy: Strategy
    rounds: int
    sensitivity: float
    ran: int
    begins: int

    @property
    def of_one_participation(self) -> float:
        return self.sensitivity * largest_column_norm(
            self.strategy, self.rounds
        )

    def reached_in(self, cycle: int, classes: int) -> float:
        place = (cycle - self.begins) * classes
        if not 0 <= place < self.ran:
            return 0.0
        return self.sensitivity * column_norm(
            self.strategy, self.rounds, self.ran, place
        )


class _Draw(NamedTuple):
    """A draw of classes, of which a record takes part with a probability."""

    draw_id: str
    classes: int
    probability: float


# Samples that may hold every record.
_OF_ALL = FullDataset | SamplingByContents | UnverifiedSampling


# Where a round of a mechanism ran: in a cycle of a draw, in an epoch, or
# neither.
_Place = tuple[_Draw, int] | str | None


class CorrelatedRounds:
    """Rounds of a ledger, of these two kinds, added one by one."""

    def __init__(self) -> None:
        self._events: defaultdict[str, set[CorrelatedSum]] = defaultdict(set)
        self._rounds: set[SpanRound] = set()
        # Spans of which no record is known to be where it would move them most.
        self._by_chance: set[str] = set()
        self._last: dict[str, _Place] = {}
        self._places: defaultdict[str, Counter[_Place]]
        self._places = defaultdict(Counter)
        # The releases of the rounds of each cycle, and their counts.
        self._cycles: dict[_Draw, dict[int, Counter[Release]]] = {}

    def add(
        self, sampling: SamplingEvent, release: Release, count: int
    ) -> None:
        """Adds rounds; what else they released counts if samples are cyclic."""
        place: _Place = None
        if isinstance(sampling, CyclicPoissonSampling):
            draw = _Draw(
                sampling.draw_id, sampling.classes, sampling.probability
            )
            place = draw, sampling.cycle
            cycles = self._cycles.setdefault(draw, {})
            cycles.setdefault(sampling.cycle, Counter())[release] += count
        elif isinstance(sampling, DisjointBatches):
            place = sampling.epoch_id
        names: set[str] = set()
        for event in release.spans:
            name = event.span_id
            self._events[name].add(event)
            comes_again = place in self._places[name]
            if comes_again and self._last[name] != place:
                self._by_chance.add(name)  # Its epochs are not in order.
            if place is None and not isinstance(sampling, _OF_ALL):
                self._by_chance.add(name)
            if isinstance(place, tuple) and place[0].classes > 1:
                self._by_chance.add(name)  # Which class it is in is a secret.
            self._last[name] = place
            self._places[name][place] += count
            names.add(name)
        epoch = place if isinstance(place, str) else None
        self._rounds.add(SpanRound(frozenset(names), epoch))

    def mechanisms(
        self, neighbours: Neighbours, others: Collection[str] = ()
    ) -> Iterator[tuple[Mechanism, int]]:
        """Yields what the rounds so far are together, with counts.

        `others` are the epochs whose rounds differ in what else they released.
        """
        # One body: what a later step may amplify depends on all before it.
        mechanisms = {
            name: _whole(events, self._places[name])
            for name, events in self._events.items()
        }
        amplified, unknown = set[str](), self._by_chance.copy()
        for draw, cycles in self._cycles.items():
            own = {
                each.mechanism_id
                for cycle in cycles.values()
                for release in cycle
                for each in release.spans
            }
            in_turn = all(
                self._separation(name, mechanisms[name]) == draw.classes
                for name in own
            )
            is_sure, is_secret = draw.probability == 1, draw.classes > 1
            alone = len(own) == 1 and not any(
                each.sensitivity for some in cycles.values() for each in some
            )
            hides = in_turn and all(
                is_banded(mechanisms[name].strategy, draw.classes)
                or mechanisms[name].rounds <= draw.classes
                for name in own
            )
            if hides:
                amplified |= own
            # A record of the first class is also where these move most.
            unknown |= {
                name
                for name in own
                if not (alone or is_toeplitz(mechanisms[name].strategy))
            }
            for moved, times in self._of_cycles(
                draw, mechanisms, own if hides else set(), is_secret
            ).items():
                if not moved.upper:
                    continue
                if hides and not is_sure:
                    yield cyclic(draw.probability, *moved, neighbours), times
                    continue
                # Nothing hides that a record takes part, if it does.
                lower = moved.lower if is_sure else 0.0
                yield gaussian_between(lower, moved.upper, neighbours), times
        spans = {
            name: self._unamplified(name, mechanism)
            for name, mechanism in mechanisms.items()
            if name not in amplified
        }
        for name in spans:
            # In an epoch a record may be where it moves the other release.
            if name in unknown or self._places[name].keys() & others:
                spans[name] = spans[name]._replace(lower=0.0)
        rounds = {
            SpanRound(shared, epoch)
            for each, epoch in self._rounds
            # An intersection would go through all spans.
            if (shared := frozenset(name for name in each if name in spans))
        }
        for moved in sensitivities_of(rounds, spans):
            yield gaussian_between(*moved, neighbours), 1

    def _of_cycles(
        self,
        draw: _Draw,
        mechanisms: dict[str, _Mechanism],
        own: set[str],
        is_secret: bool,
    ) -> Counter[Sensitivity]:
        """Returns the sensitivities of the cycles of a draw, counted.

        The lower ones are for a record of the first class. If the class is a
        secret, they are for the sum of the rounds of a cycle, of which the
        record is in one. The mechanisms in `own` are a part of the cycles.
        """
        found = Counter[Sensitivity]()
        largest = {name: mechanisms[name].of_one_participation for name in own}
        first_ran = True
        for number, cycle in sorted(self._cycles[draw].items()):
            is_full = cycle.total() >= draw.classes
            upper, lower = max(_moved(each, largest) for each in cycle), 0.0
            if is_secret and is_full:
                least = min(each.sensitivity for each in cycle)
                lower = least / math.sqrt(draw.classes)
            elif first_ran and not is_secret:
                columns = {
                    name: mechanisms[name].reached_in(number, draw.classes)
                    for name in own
                }
                lower = min(_moved(each, columns) for each in cycle)
            first_ran &= is_full  # Classes take turns, from the first on.
            found[Sensitivity(lower, upper)] += 1
            beyond = -(-cycle.total() // draw.classes) - 1
            found[Sensitivity(0.0, upper)] += beyond
        if own:
            found += _still_to_come(
                [mechanisms[name] for name in own],
                [len(self._places[name]) for name in own],
                draw.classes,
            )
        return +found

    def _separation(self, name: str, mechanism: _Mechanism) -> int | None:
        """Returns the least distance of two rounds that a record takes part in.

        `None` unless the rounds of a mechanism are one draw of classes, cycle
        after cycle, each of them full but for the last, which may hold fewer
        but no others.
        """
        counts: dict[tuple[_Draw, int], int] = {}
        for place, count in self._places[name].items():
            if not isinstance(place, tuple):
                return None
            counts[place] = count
        ((draw, first), *_), numbers = sorted(counts), sorted(counts)
        expected = [(draw, first + i) for i in range(len(numbers))]
        if numbers != expected:
            return None
        full = [counts[place] for place in expected[:-1]]
        if any(count != draw.classes for count in full):
            return None
        last = counts[expected[-1]]
        totals = [
            self._cycles[draw][number].total() for draw, number in expected
        ]
        fits = sum(full) + last <= mechanism.rounds and all(
            total <= draw.classes for total in totals
        )
        # Else its last rounds may be of other classes than the first ones.
        fits &= not full or totals[-1] == last
        return draw.classes if fits else None

    def _unamplified(self, name: str, mechanism: _Mechanism) -> Span:
        places = self._places[name]
        strategy, rounds, moved, ran, _ = mechanism
        if not moved:
            return Span(0.0, 0.0, 0.0)
        if places.total() > rounds:  # Such rounds cannot be of this mechanism.
            return Span(math.inf, math.inf, math.inf)
        separation = self._separation(name, mechanism)
        # A part of a mechanism costs the whole, which nobody reaches.
        is_reached = ran == rounds
        if all(isinstance(place, str) for place in places):
            found = sensitivity_of_epochs(
                strategy, rounds, tuple(places.values())
            )
        else:
            found = sensitivity_of_classes(strategy, rounds, separation or 1)
            is_reached &= places.keys() == {None} or (
                separation is not None
                and all(_is_sure(place) for place in places)
            )
        return Span(
            mechanism.of_one_participation,
            moved * found.lower if is_reached else 0.0,
            moved * found.upper,
            places.keys() == {None},
        )


def _is_sure(place: _Place) -> bool:
    """Returns whether a record of the class takes part."""
    return isinstance(place, tuple) and place[0].probability == 1


def _moved(release: Release, columns: Mapping[str, float]) -> float:
    """Returns how far a record moves a release, given mechanisms' columns."""
    found = (columns.get(each.mechanism_id, 0.0) for each in release.spans)
    return math.hypot(release.sensitivity, *found)


def _whole(
    events: Iterable[CorrelatedSum], places: Counter[_Place]
) -> _Mechanism:
    """Returns a mechanism of the largest bound and the least noise."""
    first, *others = events = list(events)
    if any(
        (each.strategy, each.rounds) != (first.strategy, first.rounds)
        for each in others
    ):
        raise UnsupportedEventError(
            "The rounds of one mechanism must have one strategy. Received: "
            f"mechanism {first.mechanism_id!r} with {events!r}."
        )
    bound = max(each.l2_norm_bound for each in events)
    noise = min(each.noise_stddev for each in events)
    are_alike = all(
        (each.l2_norm_bound, each.noise_stddev) == (bound, noise)
        for each in events
    )
    return _Mechanism(
        first.strategy,
        first.rounds,
        ratio(bound, noise),
        places.total() if are_alike else 0,
        min((each[1] for each in places if isinstance(each, tuple)), default=0),
    )


def _still_to_come(
    mechanisms: list[_Mechanism], cycles: list[int], classes: int
) -> Counter[Sensitivity]:
    """Returns the cycles of mechanisms of one draw that have not begun."""
    left = [
        -(-mechanism.rounds // classes) - ran
        for mechanism, ran in zip(mechanisms, cycles, strict=True)
    ]
    uppers = (
        math.hypot(
            *(
                mechanism.of_one_participation
                for mechanism, missing in zip(mechanisms, left, strict=True)
                if missing > number
            )
        )
        for number in range(max(left, default=0))
    )
    return Counter(Sensitivity(0.0, each) for each in uppers)
