"""Keras optimizers that apply noised answers, and groups of variables."""

from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.group_plan import GroupPlan, plan_groups
from keras_dp.optimizers.groups import VariableGroups, group_variables
from keras_dp.optimizers.keras_optimizers import (
    DPSGD,
    DPAdagrad,
    DPAdam,
    DPAdamW,
    DPRMSprop,
)
from keras_dp.optimizers.ledger_of_chief import LedgerOfChief

__all__ = [
    "DPSGD",
    "DPAdagrad",
    "DPAdam",
    "DPAdamW",
    "DPOptimizer",
    "DPRMSprop",
    "GroupPlan",
    "LedgerOfChief",
    "VariableGroups",
    "group_variables",
    "plan_groups",
]
