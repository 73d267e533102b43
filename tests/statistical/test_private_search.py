"""Searches for a planted canary answer as often as their law says.

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


def says_no(law, planted: bool) -> int:
    """Returns how many of `SEARCHES` searches release the answer "no"."""
    draw = random.Random(11).random
    probability = TRUE if planted else 1 - TRUE

    def trial():
        return Found(None, {}, float(draw() < probability))

    found = (best_of(law, trial, draw) for _ in range(SEARCHES))
    return sum(best is not None and best.score == 0.0 for best in found)


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("planted", [True, False])
def test_answers_have_the_probability_of_the_law(law, planted) -> None:
    """All trials say "no" with probability E[s^K]."""
    lies = 1 - TRUE if planted else TRUE

    count = says_no(law, planted)

    for each in LAWS:  # Controls: the others.
        found = scipy.stats.binomtest(count, SEARCHES, generating(each, lies))
        assert (found.pvalue > FALSE_ALARM) == (each == law)
