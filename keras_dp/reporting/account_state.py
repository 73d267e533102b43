"""Says what each account of a ledger promises, and how much is left."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from keras_dp.budgets import Budget, FixedPlan, budget_of
from keras_dp.budgets.budget import UNITS
from keras_dp.ledger import (
    AccountRecord,
    Charge,
    PrivacyLedger,
    RunRecord,
)
from keras_dp.ledger.rows.row import LARGEST_COUNT
from keras_dp.reporting.document import Document, Table, Text
from keras_dp.reporting.wording import at_most, counted, percent

# The length of a bar that shows the part that is spent.
_BAR = 20


class AccountState(NamedTuple):
    """An account, with the part that is spent and the part that is left.

    The share is in [0, 1]. For a plan it is a part of all rounds. For a filter
    it includes the rounds from before the account was opened.
    """

    record: AccountRecord
    budget: Budget
    share: float
    left: str

    @property
    def name(self) -> str:
        """The name of the account, by which runs choose it."""
        return self.record.account.name

    @property
    def promise(self) -> str:
        """The epsilon and delta that the account does not exceed."""
        epsilon, delta = self.budget.epsilon, self.budget.delta
        return f"epsilon <= {at_most(epsilon)} at delta = {at_most(delta)}"

    @property
    def spent(self) -> str:
        """A phrase that says how much is spent, and how much is left."""
        return f"{percent(self.share)} spent; {self.left}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the state as values that JSON can hold."""
        return {
            "number": self.record.number,
            "name": self.name,
            "kind": self.budget.kind,
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
    """Returns the accounts of a ledger in the order of their opening."""
    accounts = ledger.accounts
    runs = ledger.runs if accounts else ()
    return tuple(_state(each, runs) for each in accounts)


def account_table(states: Sequence[AccountState]) -> Table:
    """Returns the promise of each account, and the part that is spent."""
    rows = []
    for state in states:
        budget = state.budget
        promise = (
            f"{state.name}: {budget.kind}, {state.promise}, "
            f"{budget.neighbours.replace('_', ' ')}"
        )
        filled = round(_BAR * min(1.0, state.share))
        bar = "#" * filled + "." * (_BAR - filled)
        rows.append(
            (promise, f"[{bar}] {state.spent}", f"Theorem: {budget.theorem}")
        )
    return Table(
        "Accounts, which no run exceeds",
        ("account", "spent", "why it holds"),
        tuple(rows),
    )


def accounts_document(ledger: PrivacyLedger) -> Document:
    """Returns the accounts of a ledger as a document."""
    states = account_states(ledger)
    none = Text(
        "",
        (
            "No accounts: runs may spend without a limit. `--open` opens one, "
            "which no run exceeds from then on.",
        ),
    )
    return Document(
        f"Accounts of {ledger.header.dataset}",
        (account_table(states) if states else none,),
        {"accounts": [each.as_dict() for each in states]},
    )


def _state(record: AccountRecord, runs: tuple[RunRecord, ...]) -> AccountState:
    budget = budget_of(record.account)
    capacities, spent = record.balance
    if isinstance(budget, FixedPlan):
        used, most = sum(spent), sum(capacities)
        left = f"{most - used:,} of {counted(most, 'round')} left"
        return AccountState(record, budget, _share(used, most), left)
    # The one slot of a filter also pays for rounds from before it was opened.
    used = UNITS - capacities[0] + spent[0]
    left = "room for any rounds that fit"
    charge = _last_charge(record, runs)
    if charge is not None and charge.prices:
        room = record.balance.room(charge, LARGEST_COUNT)
        left = f"room for {counted(room, 'round')} like the last"
    return AccountState(record, budget, _share(used, UNITS), left)


def _share(used: int, most: int) -> float:
    return used / most if most else 1.0


def _last_charge(
    record: AccountRecord, runs: tuple[RunRecord, ...]
) -> Charge | None:
    """Returns the charge of the last round that the account paid for."""
    # If several runs were written in one second, the later one counts.
    by_time = sorted(runs, key=lambda run: (run.updated, run.number))
    for run in reversed(by_time):
        charges = {
            round_: charge
            for round_, charge in run.charges
            if charge.account == record.number
        }
        for round_, _ in reversed(run.rounds):
            if round_ in charges:
                return charges[round_]
    return None
