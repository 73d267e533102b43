"""Which accountants can price a ledger."""

from collections.abc import Iterable

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.analytic_gaussian import AnalyticGaussian
from keras_dp.accountants.fourier import Fourier
from keras_dp.accountants.gdp import GDP
from keras_dp.accountants.moments import Moments
from keras_dp.accountants.normalize.normalize import (
    Neighbours,
    check_neighbours,
)
from keras_dp.accountants.normalize.rounds import LedgerLike
from keras_dp.accountants.rdp import RDP
from keras_dp.accountants.strong_composition import StrongComposition

# The tightest first; what is no bound comes last.
_ALL: tuple[Accountant, ...] = (
    AnalyticGaussian(),
    Fourier(),
    RDP(),
    Moments(),
    StrongComposition(),
    GDP(),
)


def available_accountants(
    ledger: LedgerLike, *, neighbours: Neighbours = "add_or_remove_one"
) -> tuple[Accountant, ...]:
    """Returns the accountants that can replay `ledger`, the tightest first.

    `is_bound` of each says whether what it reports is a guarantee. Those of
    which it is not are at the end.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).
        neighbours: See `normalization.normalize`.

    Returns:
        Empty, if a round has no sound bound under `neighbours`.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> [each.name for each in available_accountants([(step, 10_000)])]
    ['Fourier', 'RDP', 'moments', 'strong composition', 'GDP (approximate)']
    """
    check_neighbours(neighbours)
    pairs = getattr(ledger, "rounds", ledger)
    rounds = tuple(pairs) if isinstance(pairs, Iterable) else pairs
    return tuple(
        accountant
        for accountant in _ALL
        if accountant.can_replay(rounds, neighbours=neighbours)
    )
