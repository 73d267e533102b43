"""Guesses of the coins of canaries, from their scores."""

import math
from typing import NamedTuple

import numpy as np

from keras_dp import _check
from keras_dp.accountants.arrays import Array
from keras_dp.auditing.scores import Scores

# The number of guesses is this times the root of the number of canaries. It
# gives bounds within a tenth of the best for Gaussian scores, epsilon from 1
# to 8 and 200 to 20,000 canaries.
_GUESSES = 4.0

FAIR_COINS = (
    "a fair coin of its own put each canary in or left it out, before the "
    "training, and the scores do not depend on it but through the training"
)
FIXED_GUESSES = "the number of guesses was fixed before the scores were seen"


class Guesses(NamedTuple):
    """How often the guesses of some coins were right.

    Attributes:
        canaries: The number of canaries.
        guesses: How many coins were guessed.
        correct: How many guesses were right; at equal scores at least as many.
    """

    canaries: int
    guesses: int
    correct: int

    def __str__(self) -> str:
        return (
            f"{self.correct:,} of {self.guesses:,} guesses right, of "
            f"{self.canaries:,} coins"
        )


def guesses_of(scores: Scores, number: int | None) -> Guesses:
    """Guesses "in" for the highest scores, and "out" for the lowest.

    At equal scores the wrong guesses are counted first, so that what is
    counted does not exceed what any rule for ties would.

    Args:
        scores: One for each canary.
        number: How many to guess, half of them "in"; by default four times
            the root of the number of canaries. At most all of them.
    """
    canaries = len(scores)
    if number is None:
        number = 2 * round(_GUESSES / 2 * math.sqrt(canaries))
    number = min(number, canaries)
    half = number // 2
    correct = _correct(scores.inside, scores.outside, number - half)
    correct += _correct(-scores.outside, -scores.inside, half)
    return Guesses(canaries, number, correct)


def check_guesses(guesses: int | None) -> None:
    """Raises unless the number of guesses is one, or left to the default."""
    if guesses is not None:
        _check.integer_at_least(1, guesses=guesses)


def _correct(true: Array, false: Array, number: int) -> int:
    """Returns how many of the `number` highest scores are true ones."""
    if not number:
        return 0
    every = np.concatenate([true, false])
    least = np.partition(every, every.size - number)[every.size - number]
    above = np.count_nonzero(every > least)
    right = int(np.count_nonzero(true > least))
    left = number - above - np.count_nonzero(false == least)
    return right + max(0, int(left))
