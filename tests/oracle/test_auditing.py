"""Guesses of coins against the worst mechanism there is, by enumeration."""

import math

import numpy as np
import pytest
from scipy import optimize, special

from keras_dp.auditing import OneRun, Scores
from keras_dp.auditing.one_run import Guesses, refutes

# More than the tolerance of the linear program.
TOLERANCE = 1e-6


def most_likely(canaries, guesses, correct, pair):
    """Returns the largest chance of `correct` right guesses, or more.

    It is the maximum over all mechanisms that are private for a pair
    (epsilon, delta), as a linear program. By symmetry the chance of a guess
    depends on how many are right alone: `p_k` is that of `k` right ones. For
    one coin, the outputs with `k` right guesses, its own among them, have the
    mass `k/m p_k`; with the coin turned `(r - k + 1)/m p_(k-1)`.
    """
    epsilon, delta = pair
    count = guesses + 1 + 2 * guesses
    rows, total = [], np.zeros(count)
    growth = math.exp(epsilon)
    for right in range(1, guesses + 1):
        mass = right / canaries, (guesses - right + 1) / canaries
        for side, factors in enumerate(
            [(mass[0], -growth * mass[1]), (-growth * mass[0], mass[1])]
        ):
            row = np.zeros(count)
            row[right], row[right - 1] = factors
            slack = guesses + 1 + 2 * (right - 1) + side
            row[slack], total[slack] = -1, 1
            rows.append(row)
    rows.append(total)
    most = [0.0] * (len(rows) - 1) + [delta]
    gain = np.zeros(count)
    gain[correct : guesses + 1] = -1
    sums = np.zeros([1, count])
    sums[0, : guesses + 1] = 1
    found = optimize.linprog(
        gain, A_ub=np.array(rows), b_ub=most, A_eq=sums, b_eq=[1]
    )
    return -found.fun


def p_value(found, pair):
    """Returns the largest chance that is not refuted, by bisection."""
    low, high = 0.0, 60.0
    while high - low > 2.0**-40:
        middle = (low + high) / 2
        if refutes(found, *pair, math.exp(-middle)):
            low = middle
        else:
            high = middle
    return math.exp(-low)


COUNTS = [(1, 1), (2, 2), (3, 2), (5, 5), (8, 4), (30, 12), (100, 20)]
PAIRS = [(0.0, 0.1), (0.5, 0.0), (1.0, 0.01), (2.0, 0.05), (3.0, 1e-3)]


@pytest.mark.parametrize(("canaries", "guesses"), COUNTS)
@pytest.mark.parametrize("pair", PAIRS)
def test_no_mechanism_is_right_more_often(canaries, guesses, pair) -> None:
    for correct in range(1, guesses + 1):
        worst = most_likely(canaries, guesses, correct, pair)

        found = p_value(Guesses(canaries, guesses, correct), pair)

        assert found >= worst - TOLERANCE
        if correct == guesses:
            assert found <= worst + TOLERANCE  # There it is exact.


def test_a_smaller_p_value_would_be_found_out() -> None:
    """The control: one coin less in the recursion must fail."""
    worst = most_likely(5, 5, 5, (1.0, 0.01))

    assert p_value(Guesses(4, 4, 4), (1.0, 0.01)) > worst + 0.01
    assert p_value(Guesses(6, 6, 6), (1.0, 0.01)) < worst - 0.01


def bound(counts, delta, confidence=0.95):
    """Returns the bound of scores that give these counts."""
    canaries, guesses, correct = counts
    half = guesses // 2
    wrong = guesses - correct
    high, low = half - wrong // 2, half - (wrong - wrong // 2)
    inside = [3.0] * high + [0.0] * (half - low)
    outside = [3.0] * (half - high) + [0.0] * low
    rest = [1.5] * (canaries - guesses)
    scores = Scores(inside + rest, outside)
    return OneRun(guesses).epsilon(scores, delta=delta, confidence=confidence)


# By the function `_epsilon_one_run` of jax_privacy 2.0.0, at significance 0.05
# and delta 1e-5.
PUBLISHED = [
    ((200, 56, 50), 1.381401),
    ((1000, 126, 126), 3.699779),
    ((1000, 1000, 700), 0.731741),
    ((10_000, 400, 350), 1.679693),
]


@pytest.mark.parametrize(("counts", "formula"), PUBLISHED)
def test_bounds_are_near_those_of_jax_privacy(counts, formula) -> None:
    """Another test of the same guesses; see `OneRun`."""
    found = bound(counts, 1e-5)

    assert found.epsilon == pytest.approx(formula, rel=0.02)
    assert found.statistic == str(Guesses(*counts))


@pytest.mark.parametrize("guesses", [10, 100, 1000])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
def test_all_right_refute_what_arithmetic_says(guesses, confidence) -> None:
    """Each is right with `e^epsilon / (1 + e^epsilon)` at most."""
    chance = (1 - confidence) ** (1 / guesses)

    found = bound((guesses, guesses, guesses), 0.0, confidence)

    assert found.epsilon == pytest.approx(special.logit(chance), rel=1e-5)
