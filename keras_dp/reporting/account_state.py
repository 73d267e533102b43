"""The accounts of a ledger: what each promises, and what is left of it."""

from fractions import Fraction
from typing import Any, NamedTuple

from keras_dp.budgets import Budget, Division, FixedPlan, budget_of
from keras_dp.budgets.budget import UNITS
from keras_dp.ledger import (
    AccountRecord,
    Charge,
    PrivacyLedger,
    Round,
    RunRecord,
)
from keras_dp.reporting.wording import counted, percent

# As many rounds as a ledger counts.
_MOST = 2**63 - 1


class AccountState(NamedTuple):
    """An account as it stands.

    Attributes:
        record: As it stands in the ledger.
        budget: Its promise.
        share: The part that is spent, in [0, 1], of what is spent most.
        left: A phrase: how much is left.
    """

    record: AccountRecord
    budget: Budget
    share: float
    left: str

    @property
    def name(self) -> str:
        """By which runs choose it."""
        return self.record.account.name

    @property
    def spent(self) -> str:
        """A phrase: how much is spent, and how much is left."""
        verb = "given away" if isinstance(self.budget, Division) else "spent"
        return f"{percent(self.share)} {verb}; {self.left}"

    def as_dict(self) -> dict[str, Any]:
        """Returns what JSON can hold."""
        return {
            "number": self.record.number,
            "name": self.name,
            "kind": self.budget.kind,
            "parent": self.record.account.parent,
            "opened": self.record.opened,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "neighbours": self.budget.neighbours,
            "theorem": self.budget.theorem,
            "capacities": list(self.record.balance.capacities),
            "spent": list(self.record.balance.spent),
            "spent_share": self.share,
            "left": self.left,
        }


def account_states(ledger: PrivacyLedger) -> tuple[AccountState, ...]:
    """Returns the accounts of a ledger in the order of their opening.

    >>> from keras_dp.budgets import RenyiFilter, charge_of, open_account
    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> account = open_account(ledger, "all", RenyiFilter(3.0, 1e-5))
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 1.0),))
    >>> with ledger.start_run("first", account="all") as run:
    ...     run.record(step.sampling, step.queries, 1000,
    ...                charge=charge_of(account, step))
    >>> (state,) = account_states(ledger)
    >>> round(state.share, 2), state.left
    (0.47, 'room for 1,124 rounds like the last')
    """
    accounts = ledger.accounts
    runs = ledger.runs if accounts else ()
    return tuple(_state(each, runs) for each in accounts)


def _state(record: AccountRecord, runs: tuple[RunRecord, ...]) -> AccountState:
    budget = budget_of(record.account)
    capacities, spent = record.balance
    if isinstance(budget, FixedPlan):
        used, most = sum(spent), sum(capacities)
        left = f"{most - used:,} of {counted(most, 'round')} left"
        return AccountState(record, budget, _share(used, most), left)
    if isinstance(budget, Division):
        epsilon, delta = (
            float(Fraction(repr(whole)) * (1 - Fraction(used, most)))
            for whole, used, most in zip(
                (budget.epsilon, budget.delta), spent, capacities, strict=True
            )
        )
        share = max(map(_share, spent, capacities))
        left = f"epsilon {epsilon:.6g} and delta {delta:.6g} left"
        return AccountState(record, budget, share, left)
    # A filter pays out of one number, for earlier rounds too.
    used = UNITS - capacities[0] + spent[0]
    left = "room for any rounds that fit"
    charge = _last_charge(record, runs)
    if charge is not None and charge.prices:
        room = record.balance.room(charge, _MOST)
        left = f"room for {counted(room, 'round')} like the last"
    return AccountState(record, budget, _share(used, UNITS), left)


def _share(used: int, most: int) -> float:
    return used / most if most else 1.0


def _last_charge(
    record: AccountRecord, runs: tuple[RunRecord, ...]
) -> Charge | None:
    paid: list[tuple[int, Round, Charge]] = [
        (run.updated, round_, charge)
        for run in runs
        for round_, charge in run.charges
        if charge.account == record.number
    ]
    return max(paid, key=lambda each: each[0])[2] if paid else None
