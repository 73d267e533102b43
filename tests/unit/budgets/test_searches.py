"""Accounts pay for a search as one round."""

import pytest

from keras_dp.accountants import Fourier
from keras_dp.budgets import FixedPlan, GaussianFilter, RenyiFilter
from keras_dp.errors import BudgetExceededError, UnsupportedEventError
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
    ledger.open_account("tuning", budget)
    return ledger


def test_a_plan_holds_a_search_beside_other_rounds() -> None:
    plan = FixedPlan(
        epsilon=5.0,
        delta=1e-5,
        neighbours="add_or_remove_one",
        rounds=[(SEARCH, 1), (RELEASE, 4)],
    )
    ledger = ledger_with(plan)
    with ledger.start_run(
        "search", purpose="training", account="tuning"
    ) as run:
        run.record(SEARCH.sampling, SEARCH.queries)
        run.record(RELEASE.sampling, RELEASE.queries, 4)
        # Another search is another round, which was not planned.
        with pytest.raises(BudgetExceededError):
            run.record(SEARCH.sampling, SEARCH.queries)

    assert ledger.rounds == ((SEARCH, 1), (RELEASE, 4))
    assert plan.cost == Fourier().epsilon(ledger, delta=1e-5)
    # The terms of the account are stored in the ledger, and read again.
    assert plan == FixedPlan.from_terms(
        {name: each for name, each in plan.terms().items() if name != "kind"}
    )


def test_a_renyi_filter_pays_for_a_search_by_its_moments() -> None:
    budget = RenyiFilter(4.0, 1e-5, order=6.0)
    ledger = ledger_with(budget)
    with ledger.start_run(
        "search", purpose="training", account="tuning"
    ) as run:
        run.record(SEARCH.sampling, SEARCH.queries)

    spent = ledger.accounts[0].balance
    assert budget.prices(SEARCH)[0][1] > 5 * budget.prices(RELEASE)[0][1]
    assert spent is not None


def test_a_gaussian_filter_refuses_a_search() -> None:
    with pytest.raises(UnsupportedEventError, match="RenyiFilter"):
        GaussianFilter(4.0, 1e-5).prices(SEARCH)
