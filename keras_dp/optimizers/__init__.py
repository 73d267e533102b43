"""Keras optimizers, and the private model that feeds records to queries."""

from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.named import (
    DPSGD,
    DPAdagrad,
    DPAdam,
    DPAdamW,
    DPRMSprop,
)
from keras_dp.optimizers.private_model import PrivateModel
from keras_dp.optimizers.variable_groups import VariableGroups, group_variables

__all__ = [
    "DPSGD",
    "DPAdagrad",
    "DPAdam",
    "DPAdamW",
    "DPOptimizer",
    "DPRMSprop",
    "PrivateModel",
    "VariableGroups",
    "group_variables",
]
