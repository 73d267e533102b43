"""Calculations of noise, rounds and batch sizes for a privacy target.

`epsilon_curve` shows how epsilon grows with the rounds of a ledger.
"""

from keras_dp.planning.calibration import (
    calibrate_noise,
    calibrate_scale,
)
from keras_dp.planning.epsilon_curve import EpsilonCurve as EpsilonCurve
from keras_dp.planning.epsilon_curve import epsilon_curve
from keras_dp.planning.plan import plan
from keras_dp.planning.rounds_left import rounds_left

__all__ = [
    "calibrate_noise",
    "calibrate_scale",
    "epsilon_curve",
    "plan",
    "rounds_left",
]
