"""The accountants that can replay a given ledger."""

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.fourier import Fourier
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.normalize.rounds import (
    LedgerLike,
    Neighbours,
    NormalizedRounds,
)
from keras_dp.accountants.rdp import RDP
from keras_dp.errors import UnsupportedEventError

# The tightest first.
_ALL: tuple[Accountant, ...] = (Fourier(), RDP())


def available_accountants(
    ledger: LedgerLike, *, neighbours: Neighbours | None = None
) -> tuple[Accountant, ...]:
    """Returns the accountants that can replay `ledger`, the tightest first.

    Args:
        ledger: A ledger, a run, or pairs of a Round and its count.
        neighbours: The adjacency relation; by default the strongest that
            all rounds support.

    Returns:
        The accountants; empty if none has a sound bound for every round.

    Raises:
        ValueError: `neighbours` is unknown.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> [each.name for each in available_accountants([(step, 10_000)])]
    ['Fourier', 'RDP']
    """
    try:
        rounds = normalize(ledger, neighbours)
    except UnsupportedEventError:
        return ()
    return tuple(each for each in _ALL if each.supports(rounds))


def tightest(rounds: NormalizedRounds) -> Accountant:
    """Returns the tightest accountant with a bound; `RDP` without any.

    Args:
        rounds: Normalized rounds. If no accountant has a bound for them, the
            errors of `RDP` say why.
    """
    supporting = (each for each in _ALL if each.supports(rounds.mechanisms))
    return next(supporting, RDP())
