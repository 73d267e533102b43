"""Which accountants have a bound for some rounds."""

from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.errors import UnsupportedEventError


def replays(accountant, ledger, neighbours=None) -> bool:
    """Returns whether an accountant has a bound for every round."""
    try:
        return accountant.supports(normalize(ledger, neighbours))
    except UnsupportedEventError:
        return False
