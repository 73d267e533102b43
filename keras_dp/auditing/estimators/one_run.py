"""Bounds epsilon by many canaries in one training of any kind."""

import dataclasses
from typing import ClassVar

from keras_dp.auditing.estimators import curves
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


@dataclasses.dataclass(frozen=True, slots=True)
class OneRun:
    """Guesses the coins of many canaries from one training.

    In an `(epsilon, delta)`-private training, the odds of a right guess are at
    most `e^epsilon`, apart from delta. More right guesses refute epsilon. The
    test does not assume how canaries influence each other, and so allows for
    the worst case. If a training hides each canary in independent noise, the
    bound stays below the true epsilon, however many canaries there are.

    Attributes:
        guesses: The number of coins to guess, half of them "in". By default,
            four times the square root of the number of canaries. It is reduced
            to the number of canaries. Fix it before the scores are seen.

    Source: Steinke, Nasr, Jagielski (2023), arXiv:2305.08846v1, for the audit.
    The test is that of Mahloujifar, Melis, Chaudhuri (2024),
    arXiv:2410.22235v1, for the trade-off curve of all
    (epsilon, delta)-private trainings. It refutes nearly as much, and more
    where delta matters. It holds for every number of right guesses. For few
    right guesses, some mechanisms exceed the formula of the first paper.

    >>> import numpy as np
    >>> scores = Scores(np.linspace(3, 5, 500), np.linspace(0, 3.2, 500))
    >>> found = OneRun().epsilon(scores, delta=1e-5)
    >>> round(found.epsilon, 2), found.statistic
    (3.73, '126 of 126 guesses right, of 1,000 coins')
    """

    _assumptions: ClassVar[tuple[str, ...]] = ()
    guesses: int | None = None

    def __post_init__(self) -> None:
        check_guesses(self.guesses)

    def epsilon(
        self, scores: Scores, *, delta: float, confidence: float = 0.95
    ) -> LowerBound:
        """Returns the largest epsilon that the guesses refute.

        Args:
            scores: The scores of canaries with fair coins.
            delta: In [0, 1).
            confidence: In (0, 1).
        """
        check_question(delta, confidence)
        found = guesses_of(scores, self.guesses)
        refuted = largest_refuted(
            lambda each: curves.refutes(
                found, self._curve(each, delta), 1 - confidence
            )
        )
        return LowerBound(
            self._epsilon_of(refuted, delta),
            delta,
            confidence,
            scores.neighbours,
            type(self).__name__,
            str(found),
            (FAIR_COINS, FIXED_GUESSES, *self._assumptions),
        )

    def _curve(self, refuted: float, delta: float) -> curves.Inverse:
        """Returns the trade-off curve of a value that may be refuted."""
        return curves.of_pair(refuted, delta)

    def _epsilon_of(self, refuted: float, delta: float) -> float:
        return refuted
