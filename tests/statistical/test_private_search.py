"""Searches for a planted canary cost no more than their law says.

A trial is the cheapest mechanism that there is: it answers whether the canary
is in the data, and lies with a known probability. Its score is the answer: the
search prefers trials that say "yes". This is how an adversary would choose it.
What a search says then has a probability that is known exactly.
"""

import math
import random

import pytest
import scipy.stats

from keras_dp.ledger import TruncatedNegativeBinomial
from keras_dp.tuning.best_of import Found, best_of
from tests.trial_laws import generating

TRIAL_EPSILON = 0.5
SEARCHES = 20_000
FALSE_ALARM = 1e-6
TRUE = math.exp(TRIAL_EPSILON) / (1 + math.exp(TRIAL_EPSILON))
LAWS = [
    TruncatedNegativeBinomial(shape=1, mean=6),
    TruncatedNegativeBinomial(shape=0, mean=6),
    TruncatedNegativeBinomial(shape=-0.5, mean=6),
]


def says_no(law, planted: bool, seed: int, search=best_of) -> int:
    """Returns how many of `SEARCHES` searches release the answer "no"."""
    draw = random.Random(seed).random
    probability = TRUE if planted else 1 - TRUE

    def trial():
        answer = float(draw() < probability)
        return Found(None, {}, answer)

    found = (search(law, trial, draw) for _ in range(SEARCHES))
    return sum(best is not None and best.score == 0.0 for best in found)


def lowest_epsilon(many: int, few: int) -> float:
    """Returns a lower bound on epsilon, which is wrong with `FALSE_ALARM`."""
    level = 1 - FALSE_ALARM
    high = scipy.stats.binomtest(many, SEARCHES).proportion_ci(level)
    low = scipy.stats.binomtest(few, SEARCHES).proportion_ci(level)
    return math.log(high.low / low.high)


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("planted", [True, False])
def test_answers_have_the_probability_of_the_law(law, planted) -> None:
    """All trials say "no" with probability E[s^K]."""
    lies = 1 - TRUE if planted else TRUE
    expected = generating(law, lies)

    count = says_no(law, planted, seed=11)

    found = scipy.stats.binomtest(count, SEARCHES, expected)
    assert found.pvalue > FALSE_ALARM


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_a_canary_costs_no_more_than_the_price(law) -> None:
    """The price is (shape + 2) epsilon: Papernot and Steinke (2022), Cor. 3."""
    many = says_no(law, planted=False, seed=1)
    few = says_no(law, planted=True, seed=2)

    assert lowest_epsilon(many, few) <= (law.shape + 2) * TRIAL_EPSILON


def test_a_number_of_trials_that_is_known_costs_more() -> None:
    """The control: six trials, no more and no less, exceed the price of six.

    They are what an ordinary tuner runs.
    """

    def six(law, trial, draw):
        del law, draw
        return max((trial() for _ in range(6)), key=lambda each: each.score)

    law = LAWS[0]
    many = says_no(law, planted=False, seed=1, search=six)
    few = says_no(law, planted=True, seed=2, search=six)

    assert lowest_epsilon(many, few) > (law.shape + 2) * TRIAL_EPSILON
