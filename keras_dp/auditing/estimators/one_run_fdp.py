"""Bounds epsilon by many canaries in one training with a Gaussian curve."""

import dataclasses
from typing import ClassVar

from keras_dp._override import override
from keras_dp.auditing.estimators import curves
from keras_dp.auditing.estimators.gaussian_model import gaussian_epsilon
from keras_dp.auditing.estimators.one_run import OneRun

_GAUSSIAN = (
    "the trade-off curve of the training is that of one Gaussian release, "
    "which is nearly so after many rounds"
)


@dataclasses.dataclass(frozen=True, slots=True)
class OneRunFDP(OneRun):
    """Guesses the coins of many canaries, and compares with a Gaussian curve.

    The bound is the epsilon of the largest `mu` that the guesses refute. They
    refute `mu` if they contradict the trade-off curve of a Gaussian release
    with a sensitivity of `mu` noise standard deviations. The estimator assumes
    such a curve. A training with another curve can have a smaller epsilon at
    this delta than the refuted `mu`. `p_value_of_claim` needs no such
    assumption.

    Attributes:
        guesses: As in `OneRun`.

    Source: Mahloujifar, Melis, Chaudhuri (2024), arXiv:2410.22235v1.

    >>> import numpy as np
    >>> from keras_dp.auditing.scores import Scores
    >>> scores = Scores(np.linspace(3, 5, 500), np.linspace(0, 3.2, 500))
    >>> round(OneRunFDP().epsilon(scores, delta=1e-5).epsilon, 2)
    6.09
    """

    _assumptions: ClassVar[tuple[str, ...]] = (_GAUSSIAN,)

    @override
    def _curve(self, refuted: float, delta: float) -> curves.Inverse:
        return curves.of_gaussian(refuted)

    @override
    def _epsilon_of(self, refuted: float, delta: float) -> float:
        return gaussian_epsilon(refuted, delta)
