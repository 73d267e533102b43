"""What it cost: accountants that replay a ledger. NumPy and SciPy only."""

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.analytic_gaussian import AnalyticGaussian
from keras_dp.accountants.available import available_accountants
from keras_dp.accountants.calibration import (
    calibrate_noise,
    calibrate_rounds,
    calibrate_sampling_probability,
    calibrate_scale,
)
from keras_dp.accountants.epsilon_curve import EpsilonCurve, epsilon_curve
from keras_dp.accountants.fourier import Bounds, Fourier
from keras_dp.accountants.gdp import GDP
from keras_dp.accountants.group_privacy import (
    GroupPrivacy,
    group_delta,
    group_epsilon,
)
from keras_dp.accountants.moments import Moments
from keras_dp.accountants.plan import Plan, PlannedTraining, plan
from keras_dp.accountants.rdp import RDP
from keras_dp.accountants.strong_composition import StrongComposition
from keras_dp.accountants.trade_off import (
    TradeOff,
    advantage,
    bayes_risk,
    trade_off,
)

__all__ = [
    "GDP",
    "RDP",
    "Accountant",
    "AnalyticGaussian",
    "Bounds",
    "EpsilonCurve",
    "Fourier",
    "GroupPrivacy",
    "Moments",
    "Plan",
    "PlannedTraining",
    "StrongComposition",
    "TradeOff",
    "advantage",
    "available_accountants",
    "bayes_risk",
    "calibrate_noise",
    "calibrate_rounds",
    "calibrate_sampling_probability",
    "calibrate_scale",
    "epsilon_curve",
    "group_delta",
    "group_epsilon",
    "plan",
    "trade_off",
]
