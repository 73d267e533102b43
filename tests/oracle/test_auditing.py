"""Guesses of coins against the worst mechanism there is, by enumeration."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from keras_dp.accountants.attacks.trade_off import TradeOff
from keras_dp.auditing.estimators import curves
from keras_dp.auditing.estimators.gaussian_model import gaussian_epsilon
from keras_dp.auditing.estimators.guesses import Guesses
from keras_dp.auditing.lower_bound import largest_refuted

# More than the tolerance of the linear program.
TOLERANCE = 1e-6


def most_likely(canaries, guesses, correct, pairs):
    """Returns the largest chance of so many right guesses, or more.

    It is the maximum over all mechanisms that are private for all pairs
    (epsilon, delta), as a linear program. By symmetry the chance of a guess
    depends on how many are right alone: `p_k` is that of `k` right ones. For
    one coin, the outputs with `k` right guesses, its own among them, have the
    mass `k/m p_k`; with the coin turned `(r - k + 1)/m p_(k-1)`.
    """
    count = guesses + 1 + 2 * guesses * len(pairs)
    rows, most = [], []
    for pair, (epsilon, delta) in enumerate(pairs):
        total = np.zeros(count)
        for right in range(1, guesses + 1):
            mass = right / canaries, (guesses - right + 1) / canaries
            growth = math.exp(epsilon)
            for side, factors in enumerate(
                [(mass[0], -growth * mass[1]), (-growth * mass[0], mass[1])]
            ):
                row = np.zeros(count)
                row[right], row[right - 1] = factors
                slack = guesses + 1 + 2 * (guesses * pair + right - 1) + side
                row[slack], total[slack] = -1, 1
                rows.append(row)
                most.append(0.0)
        rows.append(total)
        most.append(delta)
    gain = np.zeros(count)
    gain[correct : guesses + 1] = -1
    sums = np.zeros([1, count])
    sums[0, : guesses + 1] = 1
    found = optimize.linprog(
        gain, A_ub=np.array(rows), b_ub=most, A_eq=sums, b_eq=[1]
    )
    return -found.fun


def p_value(found, curve):
    return math.exp(
        -largest_refuted(
            lambda each: curves.refutes(found, curve, math.exp(-each))
        )
    )


def published_formula(found, epsilon, delta):
    """Theorem 5.2 of Steinke et al. 2023, as its published program has it."""
    canaries, guesses, correct = found
    chance = special.expit(epsilon)
    fewer = np.arange(1, correct + 1)
    tail = stats.binom.sf(correct - 1, guesses, chance)
    tails = stats.binom.sf(correct - fewer - 1, guesses, chance)
    slope = np.max((tails - tail) / fewer)
    return min(1.0, tail + 2 * canaries * delta * slope)


COUNTS = [(1, 1), (2, 2), (3, 2), (5, 5), (8, 4), (30, 12), (100, 20)]
PAIRS = [(0.0, 0.1), (0.5, 0.0), (1.0, 0.01), (2.0, 0.05), (3.0, 1e-3)]


@pytest.mark.parametrize(("canaries", "guesses"), COUNTS)
@pytest.mark.parametrize("pair", PAIRS)
def test_no_mechanism_is_right_more_often(canaries, guesses, pair) -> None:
    for correct in range(1, guesses + 1):
        worst = most_likely(canaries, guesses, correct, [pair])

        found = p_value(
            Guesses(canaries, guesses, correct), curves.of_pair(*pair)
        )

        assert found >= worst - TOLERANCE
        if correct == guesses:
            assert found <= worst + TOLERANCE  # There it is exact.


@pytest.mark.parametrize(("canaries", "guesses"), [(2, 2), (8, 4), (12, 12)])
def test_no_mechanism_below_a_curve_is_right_more_often(
    canaries, guesses
) -> None:
    pairs = [(0.0, 0.3), (0.5, 0.12), (1.0, 0.04), (2.0, 0.002)]
    curve = curves.of_lines(TradeOff(*zip(*pairs, strict=True)))
    for correct in range(1, guesses + 1):
        worst = most_likely(canaries, guesses, correct, pairs)

        found = p_value(Guesses(canaries, guesses, correct), curve)

        assert found >= worst - TOLERANCE
        if correct == guesses:
            assert found <= worst + TOLERANCE


def test_a_smaller_p_value_would_be_found_out() -> None:
    """The control: one coin less in the recursion must fail."""
    worst = most_likely(5, 5, 5, [(1.0, 0.01)])

    assert p_value(Guesses(4, 4, 4), curves.of_pair(1.0, 0.01)) > worst + 0.01
    assert p_value(Guesses(6, 6, 6), curves.of_pair(1.0, 0.01)) < worst - 0.01


@pytest.mark.parametrize("pair", [(0.5, 0.0), (1.0, 1e-5), (3.0, 1e-5)])
def test_it_refutes_nearly_what_the_published_formula_does(pair) -> None:
    """Where delta counts for little, as in tables of published audits."""
    epsilon, delta = pair
    for guesses in (50, 500):
        right = int(stats.binom.isf(0.01, guesses, special.expit(epsilon)))
        found = Guesses(1000, guesses, right)
        formula = published_formula(found, 0.95 * epsilon, delta)

        p = p_value(found, curves.of_pair(0.95 * epsilon, delta))

        assert p <= 1.25 * formula


def test_the_published_formula_is_no_bound_for_few_right_guesses() -> None:
    """Two coins, one right guess, epsilon 1, delta 0.01: by enumeration."""
    growth, delta = math.e, 0.01
    none = (1 - (growth + 2) * delta) / (1 + growth) ** 2
    one = growth * none + delta
    chance_of = {0: none, 1: one, 2: growth * one}

    def mechanism(coins):
        outputs = itertools.product((-1, 1), repeat=2)
        return {
            output: chance_of[
                sum(a == b for a, b in zip(output, coins, strict=True))
            ]
            for output in outputs
        }

    for coins in itertools.product((-1, 1), repeat=2):
        here = mechanism(coins)
        assert sum(here.values()) == pytest.approx(1)
        for turned in ((-coins[0], coins[1]), (coins[0], -coins[1])):
            there = mechanism(turned)
            excess = sum(
                max(0.0, here[output] - growth * there[output])
                for output in here
            )
            assert excess <= delta * (1 + 1e-12)
    assert 1 - none > published_formula(Guesses(2, 2, 1), 1.0, delta) + 5e-4
    assert p_value(Guesses(2, 2, 1), curves.of_pair(1.0, delta)) >= 1 - none


def refuted(found, curve_of, confidence=0.95):
    """Returns the largest parameter whose curve the guesses refute."""
    return largest_refuted(
        lambda each: curves.refutes(found, curve_of(each), 1 - confidence)
    )


# By the functions `_epsilon_one_run_fdp` and `_epsilon_one_run` of jax_privacy
# 2.0.0, at significance 0.05 and delta 1e-5.
PUBLISHED = [
    ((200, 56, 50), 2.465068, 1.381401),
    ((1000, 126, 126), 6.091970, 3.699779),
    ((1000, 1000, 700), 1.371980, 0.731741),
    ((10_000, 400, 350), 2.202263, 1.679693),
]


@pytest.mark.parametrize(("counts", "fdp", "formula"), PUBLISHED)
def test_bounds_are_those_of_jax_privacy(counts, fdp, formula) -> None:
    found = Guesses(*counts)

    mu = refuted(found, curves.of_gaussian)
    pair = refuted(found, lambda each: curves.of_pair(each, 1e-5))

    # They stop at 1e-6 of epsilon.
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(fdp, abs=2e-6)
    # Another test of the same guesses; see `OneRun`.
    assert pair == pytest.approx(formula, rel=0.02)


@pytest.mark.parametrize("guesses", [10, 100, 1000])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
def test_all_right_refute_what_arithmetic_says(guesses, confidence) -> None:
    """Each is right with `e^epsilon / (1 + e^epsilon)` at most."""
    found = Guesses(guesses, guesses, guesses)
    chance = (1 - confidence) ** (1 / guesses)

    epsilon = refuted(found, lambda each: curves.of_pair(each, 0.0), confidence)

    assert epsilon == pytest.approx(special.logit(chance), rel=1e-5)
