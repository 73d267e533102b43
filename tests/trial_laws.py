"""The generating functions of laws of trials, by their closed forms."""

import math

from keras_dp.ledger import PoissonTrials
from keras_dp.ledger.events.selection import TrialLaw


def generating(law: TrialLaw, s: float) -> float:
    """Returns `E[s^K]`, for `s` in [0, 1]."""
    if isinstance(law, PoissonTrials):
        return math.exp(-law.mean * (1 - s))
    whole, shape = -math.log(law.gamma), law.shape
    part = -math.log1p(-(1 - law.gamma) * s)
    if shape == 0:
        return part / whole
    if shape * whole <= 1:
        return math.expm1(shape * part) / math.expm1(shape * whole)
    # Without overflow.
    return (math.exp(shape * (part - whole)) - math.exp(-shape * whole)) / (
        -math.expm1(-shape * whole)
    )
