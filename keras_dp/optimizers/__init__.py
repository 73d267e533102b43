"""Keras optimizers that apply noised answers, and groups of variables."""

from keras_dp import _training_extra as _training_extra
from keras_dp.optimizers.dp_optimizer import (
    DPSGD,
    DPAdam,
    DPOptimizer,
    LedgerOfChief,
)
from keras_dp.optimizers.groups import VariableGroups as VariableGroups
from keras_dp.optimizers.groups import group_variables as group_variables
from keras_dp.optimizers.groups import plan_groups

__all__ = [
    "DPSGD",
    "DPAdam",
    "DPOptimizer",
    "LedgerOfChief",
    "plan_groups",
]
