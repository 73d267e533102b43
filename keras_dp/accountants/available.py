"""Which accountants can price a ledger."""

from collections.abc import Iterable

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.analytic_gaussian import AnalyticGaussian
from keras_dp.accountants.moments import Moments
from keras_dp.accountants.normalization import (
    LedgerLike,
    Neighbours,
    check_neighbours,
)
from keras_dp.accountants.rdp import RDP
from keras_dp.accountants.strong_composition import StrongComposition

# The tightest first.
_ALL: tuple[Accountant, ...] = (
    AnalyticGaussian(),
    RDP(),
    Moments(),
    StrongComposition(),
)


def available_accountants(
    ledger: LedgerLike, *, neighbours: Neighbours = "add_or_remove_one"
) -> tuple[Accountant, ...]:
    """Returns the accountants that can replay `ledger`, the tightest first.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).
        neighbours: See `normalization.normalize`.

    Returns:
        Empty, if a round has no sound bound under `neighbours`.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> available_accountants([(step, 10_000)])
    (RDP(), Moments(max_moment=32), StrongComposition())
    """
    check_neighbours(neighbours)
    pairs = getattr(ledger, "rounds", ledger)
    rounds = tuple(pairs) if isinstance(pairs, Iterable) else pairs
    return tuple(
        accountant
        for accountant in _ALL
        if accountant.can_replay(rounds, neighbours=neighbours)
    )
