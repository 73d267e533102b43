"""The best of a random number of trials, whatever a trial is."""

import collections
import math
import random

import pytest

from keras_dp.ledger import TruncatedNegativeBinomial
from keras_dp.tuning.best_of import Found, best_of, uniform

LAW = TruncatedNegativeBinomial(shape=1, mean=4)


def _many_trials():
    """Returns draws that give a law many trials: a number near 1, then others.

    The first draw of a search decides on the number of trials.
    """
    others = random.Random(3)
    first = iter([1 - 1e-3])
    return lambda: next(first, None) or others.random()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_the_worst(bad) -> None:
    scores = iter([bad, -5.0] + [bad] * 100)

    best = best_of(LAW, lambda: Found(None, {}, next(scores)), _many_trials())

    assert best.score == -5.0


def test_the_number_is_drawn_before_the_first_trial_and_once() -> None:
    order = []
    draw = random.Random(5).random

    def drawing():
        order.append("draw")
        return draw()

    def trial():
        order.append("trial")
        return Found(None, {}, math.nan)

    best_of(LAW, trial, drawing)

    assert order[0] == "draw"
    assert set(order[1:]) == {"trial"}


def test_ties_are_broken_at_random() -> None:
    """Each of three equal trials is the best equally often.

    6,000 searches; a share is off by 0.03 with a probability below 1e-5.
    """
    law = TruncatedNegativeBinomial(shape=1e6, mean=3)
    for_three = next(u / 100 for u in range(100) if law.trials(u / 100) == 3)
    draw = random.Random(7).random
    won = collections.Counter()
    for _ in range(6000):
        names = iter(range(100))
        draws = iter([for_three])
        best = best_of(
            law,
            lambda names=names: Found(next(names), {}, 1.0),
            lambda draws=draws: next(draws, None) or draw(),
        )
        won[best.model] += 1

    assert sum(won.values()) == 6000
    assert all(abs(won[name] / 6000 - 1 / 3) < 0.03 for name in range(3))


def test_the_source_of_a_search_is_the_generator_of_the_system() -> None:
    first, second = ([uniform() for _ in range(4)] for _ in range(2))

    assert first != second
    assert all(0 <= each < 1 for each in first + second)
