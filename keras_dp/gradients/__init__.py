"""Per-example gradients as records: capture, rules, fallback, self-check."""

from keras_dp import _training_extra as _training_extra
from keras_dp.gradients.capture.hooks import layers_without_rule
from keras_dp.gradients.capture.losses import (
    ExampleLosses,
    TracedMaps,
    batch_losses,
    example_losses,
    reduced_losses,
    summing,
)
from keras_dp.gradients.checks.self_check import check_loss_splits, self_check
from keras_dp.gradients.engine import (
    UNTRACEABLE,
    GradientEngine,
    PerExampleGradients,
)
from keras_dp.gradients.records.records import GradientRecords, ZeroRecords
from keras_dp.gradients.rules.batch_normalization import (
    ExampleStatistics,
    update_statistics,
)
from keras_dp.gradients.rules.batch_normalization import (
    trained_layers as trained_normalizations,
)
from keras_dp.gradients.traced_gradients import GradientTrace, TracedGradients
from keras_dp.gradients.unsupported.held_records import check_holds_no_records
from keras_dp.gradients.unsupported.variable_writes import (
    without_variable_writes,
)

__all__ = [
    "UNTRACEABLE",
    "ExampleLosses",
    "ExampleStatistics",
    "GradientEngine",
    "GradientRecords",
    "GradientTrace",
    "PerExampleGradients",
    "TracedGradients",
    "TracedMaps",
    "ZeroRecords",
    "batch_losses",
    "check_holds_no_records",
    "check_loss_splits",
    "example_losses",
    "layers_without_rule",
    "reduced_losses",
    "self_check",
    "summing",
    "trained_normalizations",
    "update_statistics",
    "without_variable_writes",
]
