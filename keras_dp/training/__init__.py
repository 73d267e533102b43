"""The private model, and the loop that feeds its records to queries."""

from keras_dp import _training_extra as _training_extra
from keras_dp.training.data.record_map import Augmentation
from keras_dp.training.devices.workers import open_ledger
from keras_dp.training.held_model import SaveModel
from keras_dp.training.metrics.gradient_norms import mean_gradient_norms
from keras_dp.training.metrics.private_metrics import (
    PrivateClassCounts,
    PrivateClippedShare,
    PrivateGradientNorm,
    PrivateLoss,
    PrivateMean,
    PrivateMetric,
)
from keras_dp.training.metrics.side_queries import plan_batch_statistics
from keras_dp.training.private_gradients import PrivateGradients
from keras_dp.training.private_model import PrivateModel

__all__ = [
    "Augmentation",
    "PrivateClassCounts",
    "PrivateClippedShare",
    "PrivateGradientNorm",
    "PrivateGradients",
    "PrivateLoss",
    "PrivateMean",
    "PrivateMetric",
    "PrivateModel",
    "SaveModel",
    "mean_gradient_norms",
    "open_ledger",
    "plan_batch_statistics",
]
