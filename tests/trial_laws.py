"""The generating function of a law of trials, by its closed form."""

import math

from keras_dp.ledger import TruncatedNegativeBinomial


def generating(law: TruncatedNegativeBinomial, s: float) -> float:
    """Returns `E[s^K]`, for `s` in [0, 1]."""
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
