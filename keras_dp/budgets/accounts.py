"""Accounts of a ledger, each opened with a budget that sets the prices."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from keras_dp import _check
from keras_dp.accountants.replay import Replay
from keras_dp.budgets.budget import Budget
from keras_dp.budgets.fixed_plan import FixedPlan
from keras_dp.budgets.renyi_filter import RenyiFilter
from keras_dp.errors import (
    BudgetExceededError,
    CalibrationError,
    LedgerFormatError,
    LedgerIntegrityError,
    UnsupportedEventError,
)
from keras_dp.ledger import (
    Account,
    AccountRecord,
    Charge,
    CountedRound,
    PrivacyLedger,
    Round,
)
from keras_dp.ledger.rows.codec import UNREADABLE, canonical, parsed

_KINDS: dict[str, Any] = {
    FixedPlan.kind: FixedPlan.from_terms,
    RenyiFilter.kind: lambda terms: RenyiFilter(**terms),
}


def open_account(
    ledger: PrivacyLedger,
    name: str,
    budget: Budget,
) -> AccountRecord:
    """Opens an account in a ledger; an account must pay for every later round.

    A round that an account has no room for does not run. If the ledger has one
    account, a training uses it by itself; if it has several, the training names
    one (`account=`). The first account also pays for the rounds that the ledger
    holds already.

    Args:
        ledger: A ledger that is open for writing.
        name: The name of the account, unique in the ledger.
        budget: A `FixedPlan` or a `RenyiFilter`.

    Returns:
        The account as the ledger holds it.

    Raises:
        BudgetExceededError: The budget has no room for the rounds that the
            ledger holds; or a plan costs more for all records of a unit than
            its epsilon.
        ValueError: An account has this name, another plan has one of the trees
            of the budget, or the budget is none for units of several records.
        LedgerWriteError: The account was not opened.

    >>> ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    >>> account = open_account(ledger, "all", RenyiFilter(3.0, 1e-5))
    >>> account.account.name, account.balance.spent
    ('all', (0,))
    """
    budget = budget.for_unit(ledger.header.rows_per_unit)

    def decide(
        opened: tuple[AccountRecord, ...], held: tuple[CountedRound, ...]
    ) -> Account:
        paying = budget if opened else budget.check_held(held)
        shared = paying.trees & _plans_of_trees(opened).keys()
        if shared:
            raise ValueError(
                "`budget` must plan trees that no other account has, because "
                "all rounds of a tree have one cost. Received: a plan with the "
                f"trees {sorted(shared)!r}. Let runs pay from the account that "
                "has them, or plan other trees."
            )
        return Account(name, paying.capacities, canonical(paying.terms()))

    # A training may record rounds until it is decided what is held.
    return ledger.open_account(decide)


def budget_of(account: Account) -> Budget:
    """Returns the budget with which an account was opened.

    Raises:
        LedgerFormatError: This version does not know this kind of budget.
    """
    terms = parsed(account.terms)
    kind = terms.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise LedgerFormatError(
            f"The budget of an account must be one of {sorted(_KINDS)!r}. "
            f"Received: {_check.shown(kind)}. A newer version of the library "
            "may know it."
        )
    try:
        budget: Budget = _KINDS[kind](terms)
    except (*UNREADABLE, BudgetExceededError, CalibrationError) as error:
        raise LedgerFormatError(
            f"The terms of a budget cannot be read: {error}"
        ) from error
    return budget


def chosen_account(
    ledger: PrivacyLedger, account: str | None
) -> AccountRecord | None:
    """Returns the account that pays for a run, `None` if there are no accounts.

    Without a name it is the only one: several accounts are refused then, as is
    a name that no account has.
    """
    opened = {each.account.name: each for each in ledger.accounts}
    if account is None and len(opened) < 2:
        return next(iter(opened.values()), None)
    if account not in [*opened]:  # It may be of any kind.
        raise ValueError(
            "`account` must name one of the accounts of the ledger. Received: "
            f"account={account!r}. Choose one of {[*opened]!r}."
        )
    return opened[account]


def charge_of(account: AccountRecord, round_: Round) -> Charge:
    """Returns the charge of one round to an account.

    Raises:
        BudgetExceededError: The plan of the account does not have this round,
            or the price is infinite.
        UnsupportedEventError: The budget has no sound price for this round.
    """
    return Charge(account.number, budget_of(account.account).prices(round_))


def why_not_covered(replay: Replay) -> str:
    """Returns why a ledger with accounts breaks their promises, or ""."""
    accounts, unpaid = replay.accounts, replay.unpaid
    held = (budget_of(each.account) for each in accounts)
    if unpaid and not any(_holds(each, unpaid) for each in held):
        return (
            "it has rounds that no account paid for, and that were not held "
            "when the first account was opened"
        )
    if any(plans > 1 for plans in _plans_of_trees(accounts).values()):
        return (
            "two accounts have plans for one tree, whose rounds have one cost"
        )
    return ""


def verify_prices(ledger: PrivacyLedger) -> None:
    """Checks the price of every round against the budget of its account.

    `PrivacyLedger.verify` checks something else: that the payments fit the
    capacities.

    Raises:
        LedgerIntegrityError: A capacity or a price differs from the budget, or
            another account than the run's own paid for a round. Or the ledger
            breaks the promises of its accounts.
    """
    accounts = {each.number: each for each in ledger.accounts}
    for each in accounts.values():
        if budget_of(each.account).capacities != each.balance.capacities:
            raise _not_to_be_trusted(
                f"The capacities of the account {each.account.name!r} are not "
                "those of its budget"
            )
    payments = ((run, *paid) for run in ledger.runs for paid in run.charges)
    for run, round_, paid in payments:
        account = accounts[paid.account]
        if run.start is None or run.start.account != account.account.name:
            raise _not_to_be_trusted(
                f"Run {run.number} was paid by {account.account.name!r}, which "
                "is not its account"
            )
        try:
            price: object = charge_of(account, round_).prices
        except (BudgetExceededError, UnsupportedEventError) as error:
            price = error
        if price != paid.prices:
            raise _not_to_be_trusted(
                f"Run {run.number} paid {paid.prices!r} for "
                f"{_check.shown(round_)}, and the price is {price}"
            )
    reason = why_not_covered(Replay(ledger)) if accounts else ""
    if reason:
        raise LedgerIntegrityError(
            f"The ledger breaks the promises of its accounts: {reason}. Do not "
            "publish what they promise. `keras-dp report` composes all rounds "
            "instead."
        )


def _not_to_be_trusted(found: str) -> LedgerIntegrityError:
    return LedgerIntegrityError(
        f"{found}. The ledger must not be trusted. Restore it from a copy."
    )


def _holds(budget: Budget, unpaid: tuple[CountedRound, ...]) -> bool:
    try:
        return budget.holds(unpaid)
    except (BudgetExceededError, UnsupportedEventError):
        return False


def _plans_of_trees(accounts: Iterable[AccountRecord]) -> Counter[str]:
    """Returns for each tree in how many plans it is."""
    return Counter(
        tree for each in accounts for tree in budget_of(each.account).trees
    )
