"""Budgets: promises that a ledger keeps, whoever spends and when."""

from keras_dp.budgets.accounts import budget_of as budget_of
from keras_dp.budgets.accounts import charge_of as charge_of
from keras_dp.budgets.accounts import chosen_account as chosen_account
from keras_dp.budgets.accounts import open_account
from keras_dp.budgets.accounts import verify_prices as verify_prices
from keras_dp.budgets.budget import Budget
from keras_dp.budgets.fixed_plan import FixedPlan
from keras_dp.budgets.ledger_guarantee import Guarantee as Guarantee
from keras_dp.budgets.ledger_guarantee import guarantee
from keras_dp.budgets.renyi_filter import RenyiFilter

__all__ = [
    "Budget",
    "FixedPlan",
    "RenyiFilter",
    "guarantee",
    "open_account",
]
