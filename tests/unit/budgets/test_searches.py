"""Accounts pay for a search as one round."""

import pytest

from keras_dp import budgets
from keras_dp.accountants import Fourier
from keras_dp.errors import BudgetExceededError
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PrivacyLedger,
    Round,
    Selection,
    TruncatedNegativeBinomial,
)

RELEASE = Round(FullDataset(True), (GaussianSum("all", 1.0, 9.0),))
SEARCH = Selection([[(RELEASE, 3)]], TruncatedNegativeBinomial(1, 5)).round


def ledger_with(budget) -> PrivacyLedger:
    ledger = PrivacyLedger.in_memory(dataset="doc")
    budgets.open_account(ledger, "tuning", budget)
    return ledger


def spend(ledger, round_, count=1) -> None:
    chosen = budgets.chosen_account(ledger, "tuning")
    with ledger.start_run("search", account="tuning") as run:
        run.record(
            round_.sampling,
            round_.queries,
            count,
            charge=budgets.charge_of(chosen, round_),
        )


def test_a_plan_holds_a_search_beside_other_rounds() -> None:
    rounds = [(SEARCH, 1), (RELEASE, 4)]
    plan = budgets.FixedPlan(rounds, 5.0, 1e-5)
    ledger = ledger_with(plan)

    spend(ledger, SEARCH)
    spend(ledger, RELEASE, 4)
    # Another search was not planned.
    with pytest.raises(BudgetExceededError):
        spend(ledger, SEARCH)

    budgets.verify_prices(ledger)
    assert [*ledger.rounds] == rounds
    assert plan.cost == Fourier().epsilon(ledger, delta=1e-5)


def test_a_renyi_filter_pays_for_a_search_by_its_moments() -> None:
    budget = budgets.RenyiFilter(4.0, 1e-5, order=6.0)
    ledger = ledger_with(budget)

    spend(ledger, SEARCH)

    budgets.verify_prices(ledger)
    assert budget.prices(SEARCH)[0][1] > 5 * budget.prices(RELEASE)[0][1]
