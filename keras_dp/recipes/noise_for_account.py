"""The noise with which all rounds of a training fit an account."""

import math
from collections.abc import Callable

from keras_dp.budgets import charge_of
from keras_dp.errors import BudgetExceededError, CalibrationError
from keras_dp.ledger import AccountRecord, Round
from keras_dp.planning.calibration import Unreachable, least_that_meets

# The largest scale that is searched.
_MOST = 1e12


def least_within(
    account: AccountRecord,
    round_for: Callable[[float], Round],
    rounds: int,
    *,
    least: float,
) -> float:
    """Returns the least noise scale at which an account has room for rounds.

    Guarantee: unless others spend from it meanwhile, the account pays for all
    of the rounds.

    Args:
        account: The one that pays.
        round_for: From a scale > 0 to a round. A larger scale must never cost
            more.
        rounds: >= 1.
        least: The scale is not below.

    Raises:
        BudgetExceededError: The account does not pay for such rounds, whatever
            their noise.
        CalibrationError: It has no room, whatever their noise.
        UnsupportedEventError: It has no price for such rounds.

    >>> from keras_dp.budgets import RenyiFilter, open_account
    >>> from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> account = open_account(ledger, "all", RenyiFilter(1.0, 1e-5))
    >>> scale = least_within(account, lambda scale: Round(
    ...     FullDataset(), (GaussianSum("sum", 1.0, scale),)), 28, least=1.0)
    >>> round(scale, 2)
    21.4
    """

    def has_room(scale: float) -> bool:
        charge = charge_of(account, round_for(scale))
        return account.balance.room(charge, rounds) == rounds

    def share(log_scale: float) -> float:
        """Returns the largest share of its slot that the rounds would take."""
        charge = charge_of(account, round_for(math.exp(log_scale)))
        left = [
            capacity - spent
            for capacity, spent in zip(*account.balance, strict=True)
        ]
        return max(
            (
                rounds * price / left[slot] if left[slot] else math.inf
                for slot, price in charge.prices
            ),
            default=0.0,
        )

    try:
        if has_room(least):
            return least
    except BudgetExceededError as error:
        raise BudgetExceededError(
            f"{error} Noise that is found for a target is in no plan: name an "
            "account with a filter, or compile a PrivateModel with a query of "
            "the plan."
        ) from error
    start = math.log(least)
    found = least_that_meets(
        share, 1.0, least=start, most=math.log(_MOST), start=start
    )
    scale = math.inf if isinstance(found, Unreachable) else math.exp(found)
    # A share that is rounded to 1 may be a unit above.
    if math.isinf(scale) or not has_room(scale := scale * (1 + 1e-12)):
        raise CalibrationError(
            f"The account must have room for {rounds:,} rounds. Received: the "
            f"account {account.account.name!r}, which has none for so many, "
            "whatever their noise. Train for fewer epochs, or with another "
            "account (`run=RunDetails(account=...)`)."
        )
    return scale
