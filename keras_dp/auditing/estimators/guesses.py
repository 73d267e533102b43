"""Guesses of the coins of canaries from their scores."""

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
    "an independent fair coin decided before the training whether each canary "
    "takes part, and the scores depend on it only through the training"
)
FIXED_GUESSES = "the number of guesses was fixed before the scores were seen"


class Guesses(NamedTuple):
    """The numbers of guesses of coins, and of right guesses.

    Attributes:
        canaries: The number of canaries.
        guesses: The number of coins that were guessed.
        correct: The number of right guesses. If scores are equal, it is the
            least number that any order of them gives.
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

    At equal scores, wrong guesses are counted first. So the number of right
    guesses is not larger than with any other order of equal scores.

    Args:
        scores: The scores of all canaries.
        number: The number of coins to guess, half of them "in". By default,
            four times the square root of the number of canaries. It is reduced
            to the number of canaries.
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
    """Raises unless the number of guesses is an integer >= 1 or None."""
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
