"""What it cost: accountants that replay a ledger. NumPy and SciPy only."""

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.analytic_gaussian import AnalyticGaussian
from keras_dp.accountants.available import available_accountants
from keras_dp.accountants.calibration import calibrate_noise, calibrate_scale
from keras_dp.accountants.moments import Moments
from keras_dp.accountants.rdp import RDP
from keras_dp.accountants.strong_composition import StrongComposition

__all__ = [
    "RDP",
    "Accountant",
    "AnalyticGaussian",
    "Moments",
    "StrongComposition",
    "available_accountants",
    "calibrate_noise",
    "calibrate_scale",
]
