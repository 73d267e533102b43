"""Keras optimizers, and the private model that feeds records to queries."""

from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.gradient_norms import mean_gradient_norms
from keras_dp.optimizers.group_plan import GroupPlan, plan_groups
from keras_dp.optimizers.named import (
    DPSGD,
    DPAdagrad,
    DPAdam,
    DPAdamW,
    DPRMSprop,
)
from keras_dp.optimizers.private_metrics import (
    PrivateClassCounts,
    PrivateLoss,
    PrivateMean,
    PrivateMetric,
)
from keras_dp.optimizers.private_model import PrivateModel
from keras_dp.optimizers.variable_groups import VariableGroups, group_variables
from keras_dp.optimizers.workers import LedgerOfChief, open_ledger

__all__ = [
    "DPSGD",
    "DPAdagrad",
    "DPAdam",
    "DPAdamW",
    "DPOptimizer",
    "DPRMSprop",
    "GroupPlan",
    "LedgerOfChief",
    "PrivateClassCounts",
    "PrivateLoss",
    "PrivateMean",
    "PrivateMetric",
    "PrivateModel",
    "VariableGroups",
    "group_variables",
    "mean_gradient_norms",
    "open_ledger",
    "plan_groups",
]
