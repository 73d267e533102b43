"""Per-example gradients as records: capture, rules, fallback, self-check."""

from keras_dp.gradients.engine import GradientEngine, PerExampleGradients
from keras_dp.gradients.losses import (
    ExampleLosses,
    batch_losses,
    example_losses,
)
from keras_dp.gradients.records import GradientRecords
from keras_dp.gradients.self_check import check_loss_splits, self_check

__all__ = [
    "ExampleLosses",
    "GradientEngine",
    "GradientRecords",
    "PerExampleGradients",
    "batch_losses",
    "check_loss_splits",
    "example_losses",
    "self_check",
]
