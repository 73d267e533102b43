"""How many more rounds a ledger may hold before it exceeds an epsilon."""

import dataclasses

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.fourier import Fourier
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.normalize.normalize import normalize, normalized
from keras_dp.accountants.normalize.normalized_rounds import (
    NormalizedRounds,
)
from keras_dp.accountants.normalize.rounds import (
    LedgerLike,
    counted_rounds,
    warn_of_units,
)
from keras_dp.accountants.replay import chosen
from keras_dp.ledger import (
    DisjointBatches,
    RandomAllocation,
    Round,
    TreeSum,
    UnverifiedSampling,
)
from keras_dp.planning.calibration import (
    CALIBRATION_WIDTH,
    MOST_ROUNDS,
    check_target,
    epsilon_of_group,
)
from keras_dp.planning.solve import Unreachable, most_that_meet

# Each is a row of its own in every question that the search asks.
_MOST_PASSES_OF_TREES = 2000
# Beyond this number of kinds of rounds, so few stand for them.
_MOST_KINDS, _FEW_KINDS = 1000, 64


def rounds_left(
    ledger: LedgerLike,
    planned: Round,
    *,
    target_epsilon: float,
    delta: float,
    most: int = MOST_ROUNDS,
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
    group_size: int = 1,
    rounds_per_pass: int | None = None,
) -> int:
    """Returns how many more rounds of one kind meet a privacy target.

    Guarantee: for what the ledger holds, followed by that many rounds,
    `accountant` reports at most `target_epsilon` at `delta`. Unless `most` are
    returned, it reports more for one round more. Beyond 1e9 rounds: for a share
    of 1e-9 more. Of more than 1000 kinds of rounds, noise is rounded down to
    that of 64 of them, which can make the result a little less.

    Args:
        ledger: The rounds that are spent already.
        planned: One of the rounds that are to come.
        target_epsilon: > 0.
        delta: In (0, 1).
        most: Where the search ends, >= 1.
        accountant: The tightest that can replay all rounds by default.
        neighbours: The adjacency relation; by default the strongest that
            all rounds support.
        group_size: How many records the target protects together, >= 1.
        rounds_per_pass: How many rounds share an `epoch_id`, if `planned` is of
            a pass over the data: `planned` is the first of a pass, and those
            that follow have ids of their own. Whole passes are counted.

    Returns:
        From 0 to `most`.

    Raises:
        UnsupportedEventError: `accountant` has no bound for such rounds.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> rounds_left([], step, target_epsilon=1.0, delta=1e-5)
    11050
    >>> rounds_left([(step, 11_000)], step, target_epsilon=1.0, delta=1e-5)
    50
    >>> rounds_left([(step, 12_000)], step, target_epsilon=1.0, delta=1e-5)
    0
    """
    check_target(target_epsilon, delta)
    _check.integer_at_least(1, most=most)
    warn_of_units(ledger, group_size)
    held = tuple(counted_rounds(ledger))
    by, relation = chosen([*held, (planned, 1)], accountant, neighbours)
    if accountant is None and isinstance(by, Fourier):
        by = Fourier(relative_width=CALIBRATION_WIDTH)

    few = _few(held, planned, relation)
    size = 1 if rounds_per_pass is None else rounds_per_pass
    most = -(-most // size)
    if _of_trees(planned) and size > 1:
        most = min(most, _MOST_PASSES_OF_TREES)

    def epsilon(count: int) -> float:
        coming = (
            [(planned, count)]
            if rounds_per_pass is None
            else _passes(planned, count, rounds_per_pass)
        )
        ledger = (
            [*held, *coming]
            if few is None
            else few.plus(normalize(coming, relation))
        )
        return epsilon_of_group(ledger, by, delta, relation, group_size)

    if epsilon(most) <= target_epsilon:
        return most * size
    found = most_that_meet(epsilon, target_epsilon, most=most, start=most)
    return 0 if isinstance(found, Unreachable) else found * size


def _passes(
    planned: Round, count: int, rounds_per_pass: int
) -> list[tuple[Round, int]]:
    """Returns rounds that cost what passes over the data do together.

    A pass of alike rounds costs what one of them does without sampling. Trees
    span several passes, which must be told apart. Rounds of random allocation
    beyond one epoch count as more epochs.
    """
    if isinstance(planned.sampling, RandomAllocation):
        return [(planned, count * rounds_per_pass)]
    if not _of_trees(planned):
        alike = dataclasses.replace(planned, sampling=UnverifiedSampling())
        return [(alike, count)]
    return [
        (
            dataclasses.replace(
                planned, sampling=DisjointBatches(f"pass {number}")
            ),
            rounds_per_pass,
        )
        for number in range(count)
    ]


def _of_trees(planned: Round) -> bool:
    return any(isinstance(query, TreeSum) for query in planned.queries)


def _few(
    held: tuple[tuple[Round, int], ...], planned: Round, relation: Neighbours
) -> NormalizedRounds | None:
    """Returns fewer kinds that dominate what is held.

    None if it is of few kinds, or if more of what is planned does not add up:
    rounds of an epoch or of a tree.
    """
    if (
        len(held) <= _MOST_KINDS
        or isinstance(planned.sampling, DisjointBatches | RandomAllocation)
        or _of_trees(planned)
    ):
        return None
    whole = normalized(held, relation)
    if len(whole.mechanisms) <= _MOST_KINDS:
        return None
    return whole.merged(_FEW_KINDS)
