"""Whether the cost of planned rounds is a bound on the cost of those that ran.

A mechanism with correlated noise, an epoch of disjoint batches and a draw of
classes *span* rounds: they have one cost for all their rounds. So the rounds
are compared as a whole, and under one adjacency relation.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from keras_dp.accountants.normalize.mechanisms import Gaussian, Mechanism
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    CyclicPoissonSampling,
    DisjointBatches,
    Round,
    RunRecord,
)

# More than the rounding errors of a sum of squares.
_ROUND_UP = 1 + 1e-12


def spans_of(round_: Round) -> Iterator[str]:
    """Yields the ids of all that a round is a part of.

    These are mechanisms with correlated noise, and epochs or the draw of the
    sampling.
    """
    if isinstance(round_.sampling, DisjointBatches):
        yield round_.sampling.epoch_id
    if isinstance(round_.sampling, CyclicPoissonSampling):
        yield round_.sampling.draw_id
    for query in round_.queries:
        if query.span_id is not None:
            yield query.span_id


def is_part(
    ran: Iterable[tuple[Round, int]], planned: Iterable[tuple[Round, int]]
) -> bool:
    """Returns whether each of the rounds that ran was planned as often."""
    return _added_up(ran) <= _added_up(planned)


def covers(
    planned: Sequence[tuple[Round, int]],
    ran: Sequence[tuple[Round, int]],
    neighbours: Neighbours,
) -> bool:
    """Returns whether a bound for the planned rounds holds for others.

    It holds for a part of the planned rounds; for rounds that are the same
    mechanisms, such as those of another clip with as much noise; and for
    Gaussian sums whose squared sensitivities add up to no more, even if answers
    chose them.

    Source: Smith and Thakurta (2022), arXiv:2210.17520 (Gaussian sums).
    """
    if is_part(ran, planned):
        return True
    try:
        room, needed = (
            Counter(dict(normalize(each, neighbours)))
            for each in (planned, ran)
        )
    except UnsupportedEventError:
        return False
    more = needed - room
    return all(isinstance(each, Gaussian) for each in more) and (
        _square(more) * _ROUND_UP <= _square(room - needed)
    )


def kept_plans(
    runs: Sequence[RunRecord], neighbours: Neighbours
) -> tuple[bool, ...]:
    """Returns whether each run of a ledger did only what was planned before.

    The cost of the plans is under the relation.
    """
    spans = [
        {
            name
            for round_, _ in (*run.rounds, *(run.plan or ()))
            for name in spans_of(round_)
        }
        for run in runs
    ]
    seen = Counter(name for each in spans for name in each)
    return tuple(
        run.plan is not None
        and not (run.first_row and run.plan_row > run.first_row)
        # Runs that share a mechanism or an epoch do exactly what was planned.
        and (
            is_part(run.rounds, run.plan)
            if any(seen[name] > 1 for name in each)
            else covers(run.plan, run.rounds, neighbours)
        )
        for run, each in zip(runs, spans, strict=True)
    )


def _added_up(rounds: Iterable[tuple[Round, int]]) -> Counter[Round]:
    counts: Counter[Round] = Counter()
    for round_, count in rounds:
        counts[round_] += count
    return counts


def _square(mechanisms: Counter[Mechanism]) -> float:
    """Returns the sum of the squared sensitivities of the Gaussian ones."""
    return math.fsum(
        count / z**2 if (z := each.noise_multiplier) else math.inf
        for each, count in mechanisms.items()
        if isinstance(each, Gaussian)
    )
