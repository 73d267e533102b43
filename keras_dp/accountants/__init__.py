"""Accountants, which turn a ledger into a guarantee, with NumPy and SciPy only.

`keras_dp.planning` solves for what a ledger is to hold.
"""

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.fourier import Bounds, Fourier
from keras_dp.accountants.normalize.participations import (
    Sensitivity as Sensitivity,
)
from keras_dp.accountants.normalize.participations import strategy_sensitivity
from keras_dp.accountants.rdp import RDP
from keras_dp.accountants.replay import available_accountants
from keras_dp.accountants.trade_off_curves import (
    bayes_risk,
    trade_off,
)

__all__ = [
    "RDP",
    "Accountant",
    "Bounds",
    "Fourier",
    "available_accountants",
    "bayes_risk",
    "strategy_sensitivity",
    "trade_off",
]
