"""Bounds epsilon by many canaries in one training with a Gaussian curve."""

import dataclasses

from keras_dp.auditing.estimators import curves
from keras_dp.auditing.estimators.gaussian_model import gaussian_epsilon
from keras_dp.auditing.estimators.guesses import (
    FAIR_COINS,
    FIXED_GUESSES,
    check_guesses,
    guesses_of,
)
from keras_dp.auditing.lower_bound import (
    LowerBound,
    check_question,
    largest_refuted,
)
from keras_dp.auditing.scores import Scores

_GAUSSIAN = (
    "the trade-off curve of the training is that of one Gaussian release, "
    "which is nearly so after many rounds"
)


@dataclasses.dataclass(frozen=True, slots=True)
class OneRunFDP:
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
    >>> scores = Scores(np.linspace(3, 5, 500), np.linspace(0, 3.2, 500))
    >>> round(OneRunFDP().epsilon(scores, delta=1e-5).epsilon, 2)
    6.09
    """

    guesses: int | None = None

    def __post_init__(self) -> None:
        check_guesses(self.guesses)

    def epsilon(
        self, scores: Scores, *, delta: float, confidence: float = 0.95
    ) -> LowerBound:
        """Returns the epsilon of the largest `mu` that the guesses refute.

        Args:
            scores: The scores of canaries with fair coins.
            delta: In (0, 1).
            confidence: In (0, 1).
        """
        check_question(delta, confidence)
        found = guesses_of(scores, self.guesses)
        mu = largest_refuted(
            lambda each: curves.refutes(
                found, curves.of_gaussian(each), 1 - confidence
            )
        )
        return LowerBound(
            gaussian_epsilon(mu, delta),
            delta,
            confidence,
            scores.neighbours,
            type(self).__name__,
            str(found),
            (FAIR_COINS, FIXED_GUESSES, _GAUSSIAN),
        )
