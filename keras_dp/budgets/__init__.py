"""Budgets: promises that a ledger keeps, whoever spends and when."""

from keras_dp.budgets.accounts import (
    budget_of,
    charge_of,
    chosen_account,
    open_account,
    verify_prices,
)
from keras_dp.budgets.budget import Budget
from keras_dp.budgets.division import Division
from keras_dp.budgets.filters import GaussianFilter, RenyiFilter
from keras_dp.budgets.fixed_plan import FixedPlan
from keras_dp.budgets.ledger_guarantee import Guarantee, guarantee

__all__ = [
    "Budget",
    "Division",
    "FixedPlan",
    "GaussianFilter",
    "Guarantee",
    "RenyiFilter",
    "budget_of",
    "charge_of",
    "chosen_account",
    "guarantee",
    "open_account",
    "verify_prices",
]
