"""Tests whether a number of right guesses refutes a trade-off curve."""

import math
from collections.abc import Callable

import numpy as np
from scipy import special

from keras_dp.accountants.attacks.trade_off import TradeOff
from keras_dp.auditing.estimators.guesses import Guesses

# Maps the true positive rate of an attack to a lower bound on its false
# positive rate.
Inverse = Callable[[float], float]

# More than the rounding of all steps of the recursion.
_ROUNDING = 1e-9


def refutes(found: Guesses, least_false: Inverse, chance: float) -> bool:
    """Returns whether that many right guesses are rarer than `chance`.

    Let `p_i` be the probability of `i` right guesses of `r`, with `m`
    canaries. Turning a coin turns a right guess of it into a wrong one, and
    leaves the others. Averaged over the coins, that gives for each `c`

        sum_{i >= c} i/m p_i  <=  F(sum_{i >= c - 1} (r - i)/m p_i),

    where `F` bounds the true positives of attacks by their false ones, and is
    concave. Suppose that `v` right guesses or more have the probability
    `chance`. The left sum is least if all of it is at `v`. Then each `c` from
    `v` down adds the least `p_{c - 1}` that the inequality asks for. If all
    together exceed 1, `chance` is refuted.

    Args:
        found: The guesses.
        least_false: The inverse of `F`, nondecreasing.
        chance: In (0, 1].

    Source: Mahloujifar, Melis, Chaudhuri (2024), arXiv:2410.22235v1, the
    numerical test.
    """
    canaries, guesses, correct = found
    if not correct:
        return False
    right = chance * correct / canaries
    wrong = chance * (guesses - correct) / canaries
    total = guesses / canaries * (1 + _ROUNDING)
    for fewer in range(correct - 1, -1, -1):
        added = least_false(min(1.0, right * (1 - _ROUNDING))) - wrong
        if added <= 0:
            break  # Neither sum changes any more.
        wrong += added
        right += added * fewer / (guesses - fewer)
        if right + wrong > total:
            return True
    return False


def of_gaussian(mu: float) -> Inverse:
    """Returns the curve of a Gaussian release of sensitivity `mu` >= 0."""

    def least_false(true: float) -> float:
        return float(special.ndtr(special.ndtri(true) - mu))

    return least_false


def of_lines(curve: TradeOff) -> Inverse:
    """Returns the lower bound that the lines of a trade-off curve give."""
    deltas = np.array(curve.deltas)
    falls = np.exp(-np.array(curve.epsilons))
    lines = np.flatnonzero(falls)
    flat_deltas, rises = deltas[lines], 1 / falls[lines]

    def least_false(true: float) -> float:
        steep = np.max((true - deltas) * falls)
        flat = np.max(1 - flat_deltas - (1 - true) * rises, initial=0.0)
        return max(0.0, float(steep), float(flat))

    return least_false


def of_pair(epsilon: float, delta: float) -> Inverse:
    """Returns the curve of all (epsilon, delta)-private mechanisms."""
    fall, rise = math.exp(-epsilon), math.exp(epsilon)

    def least_false(true: float) -> float:
        return max(0.0, (true - delta) * fall, 1 - delta - (1 - true) * rise)

    return least_false
