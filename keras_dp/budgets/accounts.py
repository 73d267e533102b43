"""Accounts of a ledger, each opened with a budget that sets the prices."""

from collections import Counter
from collections.abc import Iterable, Iterator
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
    RunRecord,
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
    *,
    parent: str | None = None,
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
        parent: The name of the account of which the new one is a share; `None`
            for no share. A `FixedPlan` can be a share of a `FixedPlan`.

    Returns:
        The account as the ledger holds it.

    Raises:
        BudgetExceededError: The parent has no room for this share; or the
            budget has no room for the rounds that the ledger holds; or a plan
            costs more for all records of a unit than its epsilon.
        ValueError: An account has this name, no account is named `parent`, the
            parent cannot have such a share, another plan has one of the trees
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
    ) -> tuple[Account, Charge | None]:
        charge, paying, whole = None, budget, None
        if parent is not None:
            paid_by = _named(opened, parent)
            whole = budget_of(paid_by.account)
            charge = Charge(paid_by.number, whole.share(budget))
        elif not opened:
            paying = budget.check_held(held)
        shared = _trees(paying, whole) & _plans_of_trees(opened).keys()
        if shared:
            raise ValueError(
                "`budget` must plan trees that no other account has, because "
                "all rounds of a tree have one cost. Received: a plan with the "
                f"trees {sorted(shared)!r}. Make it a share of the plan that "
                "has them, or plan other trees."
            )
        terms = canonical(paying.terms())
        return Account(name, paying.capacities, terms, parent), charge

    # A training may record rounds until it is decided what is held.
    return ledger.open_account(decide)


def budget_of(account: Account) -> Budget:
    """Returns the budget with which an account was opened.

    Args:
        account: The account, such as `AccountRecord.account`.

    Raises:
        LedgerFormatError: This version does not know this kind of budget.

    >>> ledger = PrivacyLedger.in_memory(dataset="clinic")
    >>> opened = open_account(ledger, "all", RenyiFilter(3.0, 1e-5))
    >>> budget_of(opened.account).epsilon
    3.0
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
    """Returns the account that pays for a run.

    Args:
        ledger: The ledger that the run writes to.
        account: The name of the account; `None` for the only account without
            shares.

    Returns:
        The account; `None` if the ledger has no accounts.

    Raises:
        ValueError: No account has this name; or `account` is `None`, and
            several accounts could pay.

    >>> ledger = PrivacyLedger.in_memory(dataset="clinic")
    >>> chosen_account(ledger, None) is None
    True
    """
    opened = ledger.accounts
    if account is not None:
        return _named(opened, account)
    parents = {each.account.parent for each in opened}
    able = [each for each in opened if each.account.name not in parents]
    if len(able) > 1:
        raise ValueError(
            "`account` must name one of the accounts of the ledger. Received: "
            f"account=None. Choose one of "
            f"{[each.account.name for each in able]!r}."
        )
    return able[0] if able else None


def charge_of(account: AccountRecord, round_: Round) -> Charge:
    """Returns the charge of one round to an account.

    Raises:
        BudgetExceededError: The plan of the account does not have this round,
            the price is infinite, or only shares of the account can pay.
        UnsupportedEventError: The budget has no sound price for this round.

    >>> from keras_dp.ledger import FullDataset, GaussianSum
    >>> ledger = PrivacyLedger.in_memory(dataset="clinic")
    >>> account = open_account(ledger, "all", RenyiFilter(1.0, 1e-5))
    >>> mean = Round(FullDataset(), (GaussianSum("mean", 1.0, 20.0),))
    >>> account.balance.room(charge_of(account, mean), count=100)
    24
    """
    return Charge(account.number, budget_of(account.account).prices(round_))


def why_not_covered(replay: Replay) -> str:
    """Returns why a ledger with accounts breaks their promises, or ""."""
    accounts, unpaid = replay.accounts, replay.unpaid
    budgets = _budgets_by_name(accounts)
    if unpaid and not any(_holds(each, unpaid) for each in budgets.values()):
        return (
            "it has rounds that no account paid for, and that were not held "
            "when the first account was opened"
        )
    if any(plans > 1 for plans in _plans_of_trees(accounts).values()):
        return (
            "two accounts have plans for one tree, whose rounds have one cost"
        )
    for each in accounts:
        whole = budgets.get(each.account.parent)
        if whole and whole.neighbours != budgets[each.account.name].neighbours:
            return (
                f"the account {each.account.name!r} protects other neighbours "
                "than the account of which it is a share"
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
            raise LedgerIntegrityError(
                f"The capacities of the account {each.account.name!r} are not "
                "those of its budget. The ledger must not be trusted. Restore "
                "it from a copy."
            )
    for run, round_, paid in _payments(ledger):
        account = accounts[paid.account]
        if run.start is None or run.start.account != account.account.name:
            raise LedgerIntegrityError(
                f"Run {run.number} was paid by {account.account.name!r}, which "
                "is not its account. The ledger must not be trusted. Restore "
                "it from a copy."
            )
        try:
            price: object = charge_of(account, round_).prices
        except (BudgetExceededError, UnsupportedEventError) as error:
            price = error
        if price != paid.prices:
            raise LedgerIntegrityError(
                f"Run {run.number} paid {paid.prices!r} for "
                f"{_check.shown(round_)}, and the price is {price}. The ledger "
                "must not be trusted. Restore it from a copy."
            )
    reason = why_not_covered(Replay(ledger)) if accounts else ""
    if reason:
        raise LedgerIntegrityError(
            f"The ledger breaks the promises of its accounts: {reason}. Do not "
            "publish what they promise. `keras-dp report` composes all rounds "
            "instead."
        )


def _holds(budget: Budget, unpaid: tuple[CountedRound, ...]) -> bool:
    try:
        return budget.holds(unpaid)
    except (BudgetExceededError, UnsupportedEventError):
        return False


def _budgets_by_name(
    accounts: Iterable[AccountRecord],
) -> dict[str | None, Budget]:
    return {each.account.name: budget_of(each.account) for each in accounts}


def _trees(budget: Budget, whole: Budget | None) -> frozenset[str]:
    """Returns the trees of a plan; none if it is a share of a plan."""
    if isinstance(budget, FixedPlan) and not isinstance(whole, FixedPlan):
        return budget.trees
    return frozenset()


def _plans_of_trees(accounts: Iterable[AccountRecord]) -> Counter[str]:
    """Returns for each tree in how many plans it is."""
    budgets = _budgets_by_name(accounts)
    return Counter(
        tree
        for each in accounts
        for tree in _trees(
            budgets[each.account.name], budgets.get(each.account.parent)
        )
    )


def _payments(
    ledger: PrivacyLedger,
) -> Iterator[tuple[RunRecord, Round, Charge]]:
    for run in ledger.runs:
        for round_, charge in run.charges:
            yield run, round_, charge


def _named(accounts: tuple[AccountRecord, ...], name: str) -> AccountRecord:
    for each in accounts:
        if each.account.name == name:
            return each
    raise ValueError(
        "`account`, or the `parent` of a new account, must be the name of an "
        f"account of the ledger. Received: {name!r}. The ledger has "
        f"{[each.account.name for each in accounts]!r}."
    )
