"""Many canaries in one training, whose trade-off curve is Gaussian."""

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
    "the trade-off curve of the training is that of one Gaussian release, as "
    "it nearly is after many rounds"
)


@dataclasses.dataclass(frozen=True, slots=True)
class OneRunFDP:
    """Guesses the coins of many canaries, and compares with a Gaussian curve.

    The largest `mu` is found such that the guesses refute the trade-off curve
    of a Gaussian release of sensitivity `mu`, in noise stddevs. Its epsilon is
    the bound. A training with another curve may have a smaller epsilon at this
    delta, although no small `mu` bounds it: hence the assumption.
    `p_value_of_claim` does without.

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
            scores: One for each canary with a fair coin.
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
