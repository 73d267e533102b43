"""Calculates how many more rounds a privacy target allows after a ledger."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from keras_dp import _check
from keras_dp._counted import first_of
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.normalize.rounds import LedgerLike, Neighbours
from keras_dp.accountants.replay import replay_of
from keras_dp.ledger import (
    CyclicPoissonSampling,
    DisjointBatches,
    Round,
    SamplingEvent,
    UnverifiedSampling,
)
from keras_dp.planning.calibration import (
    MOST_ROUNDS,
    Unreachable,
    checked_target,
    most_that_meet,
    searched,
)

# The search normalizes each pass separately, which limits their number.
_MOST_PASSES_OF_TREES = 2000


def rounds_left(
    ledger: LedgerLike,
    planned: Round | Sequence[tuple[Round, int]],
    *,
    target_epsilon: float,
    delta: float,
    most: int = MOST_ROUNDS,
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
    units: int = 1,
    rounds_per_pass: int | None = None,
) -> int:
    """Returns how many more rounds, planned in order, meet a privacy target.

    Guarantee: if the result is not 0, `accountant` reports at most
    `target_epsilon` at `delta` for the ledger followed by that many rounds.
    The result is the largest such number up to `most`, except that:

    - beyond 1e9 rounds, a share of 1e-9 more may meet the target too;
    - with `rounds_per_pass`, it is the largest number of whole passes, where
      `most` is rounded up to a whole pass;
    - for passes of a tree, it is at most 2000 passes.

    Args:
        ledger: The rounds that are already spent.
        planned: One of the rounds to come, if these are of one kind. Or all of
            them in order, as pairs of a Round and its count.
        target_epsilon: > 0.
        delta: In (0, 0.5].
        most: The largest number of rounds to consider, >= 1.
        accountant: By default, the tightest that can replay all rounds.
        neighbours: See `calibrate_noise`.
        units: See `calibrate_noise`.
        rounds_per_pass: The number of rounds that share an `epoch_id`, if the
            rounds to come are passes over the data. `planned` is then the first
            round of a pass, and later passes have other ids. `None` where
            `planned` has all rounds.

    Returns:
        The number of rounds, a multiple of `rounds_per_pass` if that is given.
            It is 0 if one round or pass more exceeds the target, and also if
            the ledger alone exceeds it.

    Raises:
        UnsupportedEventError: `accountant` has no bound for such rounds.
        ValueError: A number is out of its range, or `rounds_per_pass` is given
            for rounds that are all planned.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> rounds_left([], step, target_epsilon=1.0, delta=1e-5)
    11050
    >>> rounds_left([(step, 11_000)], step, target_epsilon=1.0, delta=1e-5)
    50
    >>> rounds_left([(step, 12_000)], step, target_epsilon=1.0, delta=1e-5)
    0
    >>> less = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 2.0),))
    >>> rounds_left(
    ...     [], [(step, 5000), (less, 5000)], target_epsilon=1.0, delta=1e-5)
    6332
    """
    target_epsilon, delta = checked_target(target_epsilon, delta)
    _check.integer_at_least(1, most=most)
    coming: Callable[[int], list[tuple[Round, int]]]
    if isinstance(planned, Round):
        first: Sequence[tuple[Round, int]] = [(planned, 1)]
        coming = functools.partial(repeated, planned, rounds_per_pass)
    elif rounds_per_pass is not None:
        raise ValueError(
            "`rounds_per_pass` must be left out where `planned` has all rounds "
            f"to come. Received: rounds_per_pass={rounds_per_pass!r}. Pass the "
            "first round of a pass."
        )
    else:
        first = list(planned)  # An iterator could be read only once.
        coming = functools.partial(first_of, first)
        most = min(most, sum(count for _, count in first))
    size = 1 if rounds_per_pass is None else rounds_per_pass
    _check.integer_at_least(1, rounds_per_pass=size)
    most = -(-most // size)
    if size > 1 and any(_needs_ids(each) for each, _ in first):
        most = min(most, _MOST_PASSES_OF_TREES)
    held = replay_of(ledger)
    known = held.plus(first)
    relation = known.relation(neighbours)
    by = accountant or known.accountant(relation)

    def epsilon(by: Accountant, count: int) -> float:
        return by.epsilon(
            held.plus(coming(count)),
            delta=delta,
            neighbours=relation,
            units=units,
        )

    if epsilon(by, most) <= target_epsilon:
        return most * size
    found = searched(
        epsilon,
        lambda of: most_that_meet(of, target_epsilon, most=most, start=most),
        by,
        target_epsilon,
    )
    return 0 if isinstance(found, Unreachable) else found * size


def repeated(
    planned: Round, rounds_per_pass: int | None, count: int
) -> list[tuple[Round, int]]:
    """Returns rounds, or rounds with the privacy loss of passes over the data.

    A pass of equal rounds over disjoint batches costs as much as one of them
    without sampling. A tree spans several passes, which need different ids.
    """
    if rounds_per_pass is None:
        return [(planned, count)]
    sampling = planned.sampling
    if not _needs_ids(planned):
        alike = dataclasses.replace(planned, sampling=UnverifiedSampling())
        return [(alike, count)]
    passes: list[SamplingEvent] = [
        DisjointBatches(f"pass {number}") for number in range(count)
    ]
    if isinstance(sampling, CyclicPoissonSampling):
        draw, first = sampling.draw_id, sampling.cycle
        passes = [
            dataclasses.replace(sampling, epoch_id=f"{draw}-{first + number}")
            for number in range(count)
        ]
    return [
        (dataclasses.replace(planned, sampling=each), rounds_per_pass)
        for each in passes
    ]


def _needs_ids(planned: Round) -> bool:
    """Returns whether each pass over the data needs an id of its own."""
    return isinstance(planned.sampling, CyclicPoissonSampling) or any(
        query.span_id is not None for query in planned.queries
    )
