"""Accounts of a ledger: opened with a budget, charged by its prices."""

import json
from collections.abc import Iterator
from typing import Any

from keras_dp.budgets.budget import Budget
from keras_dp.budgets.division import Division
from keras_dp.budgets.filters import GaussianFilter, RenyiFilter
from keras_dp.budgets.fixed_plan import FixedPlan
from keras_dp.errors import LedgerFormatError, LedgerIntegrityError
from keras_dp.ledger import (
    Account,
    AccountRecord,
    Charge,
    PrivacyLedger,
    Round,
    RunRecord,
)
from keras_dp.ledger.canonical import canonical

_KINDS: dict[str, Any] = {
    FixedPlan.kind: FixedPlan.from_terms,
    RenyiFilter.kind: lambda terms: RenyiFilter(**terms),
    GaussianFilter.kind: lambda terms: GaussianFilter(**terms),
    Division.kind: lambda terms: Division(**terms),
}


def open_account(
    ledger: PrivacyLedger,
    name: str,
    budget: Budget,
    *,
    parent: str | None = None,
) -> AccountRecord:
    """Opens an account, which no round can exceed from then on.

    Every round that is recorded later must be paid by an account. A ledger
    with one account charges it without being told; with several, a training
    names its own (`account=`). The first account pays for the rounds that the
    ledger holds already.

    Args:
        ledger: Opened for writing.
        name: That no other account has.
        budget: A `FixedPlan`, a `RenyiFilter`, a `GaussianFilter`; or a
            `Division`, whose shares are accounts.
        parent: The account of which it is a share. A plan can be a share of a
            plan, and anything a share of a division.

    Raises:
        BudgetExceededError: The parent has no room for it, or the rounds that
            the ledger holds leave none.
        ValueError: The name is taken, there is no such parent, or it cannot
            have such shares.
        LedgerWriteError: The account is not opened.

    >>> ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    >>> account = open_account(ledger, "all", RenyiFilter(3.0, 1e-5))
    >>> account.account.name, account.balance.spent
    ('all', (0,))
    """
    rows_per_unit = ledger.header.rows_per_unit
    if rows_per_unit > 1 and getattr(budget, "group_size", 1) != rows_per_unit:
        raise ValueError(
            "`budget` must protect the rows of one unit together. Received: "
            f"budget={budget!r}, for a ledger with rows_per_unit="
            f"{rows_per_unit}. Take a FixedPlan with group_size="
            f"{rows_per_unit}."
        )
    opened = ledger.accounts
    charge = None
    if parent is not None:
        whole = _named(opened, parent)
        charge = Charge(whole.number, budget_of(whole.account).share(budget))
    elif not opened:
        budget = budget.check_held(ledger.rounds)
    account = Account(
        name, budget.capacities, canonical(budget.terms()), parent
    )
    return ledger.open_account(account, charge)


def budget_of(account: Account) -> Budget:
    """Returns the budget with which an account was opened.

    Raises:
        LedgerFormatError: Its terms are of a kind that is not known.
    """
    terms = json.loads(account.terms)
    kind = terms.pop("kind", None)
    if kind not in _KINDS:
        raise LedgerFormatError(
            f"The budget of an account must be one of {sorted(_KINDS)!r}. "
            f"Received: {kind!r}. A newer version of the library may know it."
        )
    budget: Budget = _KINDS[kind](terms)
    return budget


def chosen_account(
    ledger: PrivacyLedger, account: str | None
) -> AccountRecord | None:
    """Returns the account that pays for a run.

    Args:
        ledger: The one that the run writes to.
        account: Its name; `None` for the only one, if there is just one that
            can pay for rounds.

    Returns:
        `None` if the ledger has no accounts.

    Raises:
        ValueError: There is no such account, or there are several.
    """
    opened = ledger.accounts
    if account is not None:
        return _named(opened, account)
    parents = {each.account.parent for each in opened}
    able = [each for each in opened if each.account.name not in parents]
    if len(able) > 1:
        raise ValueError(
            "`account` must name one of the accounts of the ledger. Received: "
            f"account=None, with {[each.account.name for each in able]!r}."
        )
    return able[0] if able else None


def charge_of(account: AccountRecord, round_: Round) -> Charge:
    """Returns what one round costs an account.

    Raises:
        BudgetExceededError: The account has no such rounds.
        UnsupportedEventError: There is no sound price.
    """
    return Charge(account.number, budget_of(account.account).prices(round_))


def verify_prices(ledger: PrivacyLedger) -> None:
    """Checks that every round and share was paid at its price.

    The ledger itself checks that what was paid fits the capacities; see
    `PrivacyLedger.verify`.

    Raises:
        LedgerIntegrityError: A price or a capacity is not that of the budget.
    """
    accounts = {each.number: each for each in ledger.accounts}
    for each in accounts.values():
        if budget_of(each.account).capacities != each.balance.capacities:
            raise LedgerIntegrityError(
                f"The capacities of the account {each.account.name!r} are not "
                "those of its budget. The ledger must not be trusted."
            )
    for run, round_, paid in _payments(ledger):
        account = accounts[paid.account]
        if run.start is None or run.start.account != account.account.name:
            raise LedgerIntegrityError(
                f"Run {run.number} was paid by {account.account.name!r}, which "
                "is not its account. The ledger must not be trusted."
            )
        if charge_of(account, round_) != paid:
            raise LedgerIntegrityError(
                f"Run {run.number} paid {paid.prices!r} for {round_!r}, and "
                f"the price is {charge_of(account, round_).prices!r}. The "
                "ledger must not be trusted."
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
        "`account` must be one of those of the ledger. Received: "
        f"{name!r}. It has {[each.account.name for each in accounts]!r}."
    )
