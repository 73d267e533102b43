"""Accountants, which turn a ledger into a guarantee, with NumPy and SciPy only.

The functions of `keras_dp.planning` are available here too. They are imported
when they are first used, because planning itself imports the accountants.
"""

import importlib
from typing import TYPE_CHECKING, Any

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.analytic_gaussian import AnalyticGaussian
from keras_dp.accountants.attacks.group_privacy import (
    GroupPrivacy,
    group_delta,
    group_epsilon,
)
from keras_dp.accountants.attacks.precision import precision_at_recall
from keras_dp.accountants.attacks.trade_off import (
    TradeOff,
    advantage,
    bayes_risk,
    trade_off,
)
from keras_dp.accountants.available import available_accountants
from keras_dp.accountants.fourier import Bounds, Fourier
from keras_dp.accountants.gdp import GDP
from keras_dp.accountants.moments import Moments
from keras_dp.accountants.normalize.adjacency import strongest_neighbours
from keras_dp.accountants.rdp import RDP
from keras_dp.accountants.strong_composition import StrongComposition

if TYPE_CHECKING:
    from keras_dp.planning.calibration import (
        calibrate_noise,
        calibrate_rounds,
        calibrate_sampling_probability,
        calibrate_scale,
    )
    from keras_dp.planning.epsilon_curve import EpsilonCurve, epsilon_curve
    from keras_dp.planning.plan import Plan, PlannedTraining, plan
    from keras_dp.planning.rounds_left import rounds_left
    from keras_dp.planning.user_plan import (
        UserPlan,
        UserProtection,
        plan_users,
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
    "UserPlan",
    "UserProtection",
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
    "plan_users",
    "precision_at_recall",
    "rounds_left",
    "strongest_neighbours",
    "trade_off",
]


if not TYPE_CHECKING:  # Else every misspelt name would pass as `Any`.

    def __getattr__(name: str) -> Any:
        if name in __all__:
            planning = importlib.import_module("keras_dp.planning")
            return getattr(planning, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
