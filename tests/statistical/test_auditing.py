"""How often lower bounds exceed the truth, and how near they come."""

import numpy as np
import pytest
from scipy import special, stats

from keras_dp.auditing import OneRun, Scores
from keras_dp.auditing.one_run import guesses_of, refutes

# The chance that a test fails although all is well.
FALSE_ALARM = 1e-6
RUNS, CANARIES, CONFIDENCE, DELTA = 1000, 400, 0.95, 1e-5
# A Gaussian release of epsilon 3 at 1e-5.
MU = 0.7191174322


def drawn(generator, mu, count):
    """Fair coins, each released with noise of its own."""
    coins = generator.random(count) < 0.5
    return Scores.from_coins(generator.normal(size=count) + mu * coins, coins)


def revealed(generator, epsilon, delta, count):
    """The worst for `OneRun`: randomized response, delta of which reveals."""
    coins = generator.random(count) < 0.5
    truthful = generator.random(count) < special.expit(epsilon)
    if generator.random() < delta:
        truthful[:] = True
    return Scores.from_coins(np.where(truthful, coins, ~coins) * 1.0, coins)


def alarms(exceeds, draw):
    generator = np.random.Generator(np.random.Philox(3))
    return sum(exceeds(draw(generator)) for _ in range(RUNS))


def too_many(count):
    """The chance of so many alarms of 5 %, or more."""
    return stats.binomtest(count, RUNS, 1 - CONFIDENCE, "greater").pvalue


@pytest.mark.full
def test_bounds_exceed_epsilon_in_one_of_twenty_trainings_at_most() -> None:
    found = alarms(
        lambda scores: OneRun().epsilon(scores, delta=DELTA).epsilon > 3.0,
        lambda generator: drawn(generator, MU, CANARIES),
    )

    assert too_many(found) > FALSE_ALARM


@pytest.mark.full
def test_so_do_those_of_randomized_response() -> None:
    """All coins are guessed, and the bound is nearly exact: 5 % of alarms."""
    estimator = OneRun(guesses=CANARIES)

    def draw(generator):
        scores = revealed(generator, 1.0, 0.0, CANARIES)
        # A tie would count as wrong: another score tells equal ones apart.
        return Scores(
            scores.inside + 0.1 * generator.random(scores.inside.size),
            scores.outside + 0.1 * generator.random(scores.outside.size),
        )

    found = alarms(
        lambda scores: estimator.epsilon(scores, delta=0.0).epsilon > 1.0, draw
    )

    assert too_many(found) > FALSE_ALARM
    assert found > 5  # The bound is no idle one.


@pytest.mark.full
def test_a_number_of_guesses_that_the_scores_choose_is_found_out() -> None:
    """The control: the best of all numbers of guesses must fail."""
    found = alarms(
        lambda scores: any(
            refutes(guesses_of(scores, guesses), 0.0, 0.0, 0.05)
            for guesses in range(2, 102, 2)
        ),
        lambda generator: drawn(generator, 0.0, CANARIES),
    )

    assert too_many(found) < FALSE_ALARM


def test_bounds_come_near_epsilon() -> None:
    """The mean of ten trainings with 10,000 canaries."""
    generator = np.random.Generator(np.random.Philox(5))
    bounds = [
        OneRun().epsilon(drawn(generator, MU, 10_000), delta=DELTA).epsilon
        for _ in range(10)
    ]

    assert 0.5 < np.mean(bounds) / 3.0 < 1
