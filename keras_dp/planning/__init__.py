"""Calculations of noise, rounds and batch sizes for a privacy target."""

from keras_dp.planning.calibration import (
    calibrate_noise,
    calibrate_scale,
)
from keras_dp.planning.correlated_noise import (
    CorrelatedNoise as CorrelatedNoise,
)
from keras_dp.planning.correlated_noise import (
    calibrate_correlated_noise,
    optimize_strategy,
    plan_correlated_noise,
    prefix_sum_error,
)
from keras_dp.planning.plan import plan
from keras_dp.planning.rounds_left import rounds_left

__all__ = [
    "calibrate_correlated_noise",
    "calibrate_noise",
    "calibrate_scale",
    "optimize_strategy",
    "plan",
    "plan_correlated_noise",
    "prefix_sum_error",
    "rounds_left",
]
