"""How many more rounds a ledger may hold before it exceeds an epsilon."""

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.fourier import Fourier
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.normalize.rounds import LedgerLike, counted_rounds
from keras_dp.accountants.replay import chosen
from keras_dp.ledger import Round
from keras_dp.planning.calibration import (
    CALIBRATION_WIDTH,
    MOST_ROUNDS,
    check_target,
    epsilon_of_group,
)
from keras_dp.planning.solve import Unreachable, most_that_meet


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
) -> int:
    """Returns how many more rounds of one kind meet a privacy target.

    Guarantee: for what the ledger holds, followed by that many rounds,
    `accountant` reports at most `target_epsilon` at `delta`. Unless `most` are
    returned, it reports more for one round more. Beyond 1e9 rounds: for a share
    of 1e-9 more.

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
    held = tuple(counted_rounds(ledger))
    by, relation = chosen([*held, (planned, 1)], accountant, neighbours)
    if accountant is None and isinstance(by, Fourier):
        by = Fourier(relative_width=CALIBRATION_WIDTH)

    def epsilon(count: int) -> float:
        pairs = [*held, (planned, count)]
        return epsilon_of_group(pairs, by, delta, relation, group_size)

    if epsilon(most) <= target_epsilon:
        return most
    found = most_that_meet(epsilon, target_epsilon, most=most, start=most)
    return 0 if isinstance(found, Unreachable) else found
