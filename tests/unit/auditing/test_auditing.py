"""Scores, and the lower bounds that estimators make of them."""

import numpy as np
import pytest

from keras_dp.accountants import Fourier
from keras_dp.auditing import OneRun, Scores
from keras_dp.auditing.one_run import guesses_of
from keras_dp.ledger import FullDataset, GaussianSum, Round

DELTA = 1e-5


def normal_scores(mu, count=2000, seed=0):
    """Scores of a Gaussian release of each coin, for itself."""
    generator = np.random.Generator(np.random.Philox(seed))
    coins = generator.random(count) < 0.5
    return Scores.from_coins(generator.normal(size=count) + mu * coins, coins)


def bound(scores, **question):
    return OneRun().epsilon(scores, **{"delta": DELTA, **question})


class TestScores:
    @pytest.mark.parametrize(
        ("make", "match"),
        [
            (lambda: Scores([np.nan], []), r"`inside` must be one finite"),
            (lambda: Scores([], [np.inf]), r"`outside` must be one finite"),
            (lambda: Scores([[1.0]], []), r"shape=\(1, 1\)"),
            (lambda: Scores([1.0], [], "close"), r"`neighbours` must be one"),
            (lambda: Scores.from_coins([1.0], [1]), r"`coins` must be one"),
            (lambda: Scores.from_coins([1.0], [True] * 2), r"`coins` must be"),
        ],
    )
    def test_that_cannot_be_are_refused(self, make, match) -> None:
        with pytest.raises(ValueError, match=match):
            make()


class TestGuesses:
    def test_are_in_for_the_highest_and_out_for_the_lowest(self) -> None:
        scores = Scores([5.0, 4.0, 1.0], [4.5, 2.0, 0.0])

        assert guesses_of(scores, 4) == (6, 4, 2)
        assert guesses_of(scores, 2) == (6, 2, 2)
        assert guesses_of(scores, 3) == (6, 3, 2)

    def test_at_equal_scores_count_as_wrong(self) -> None:
        assert guesses_of(Scores([1.0] * 5, [1.0] * 5), 4).correct == 0
        assert guesses_of(Scores([1.0] * 5, [1.0] * 3), 8).correct == 1

    def test_never_exceed_those_of_any_order_of_equal_scores(self) -> None:
        generator = np.random.Generator(np.random.Philox(0))
        for _ in range(50):
            values = generator.integers(0, 4, 12).astype(float)
            coins = generator.random(12) < 0.5
            order = np.lexsort([generator.random(12), values])
            lowest, highest = order[:3], order[-3:]
            right = coins[highest].sum() + (~coins[lowest]).sum()

            found = guesses_of(Scores.from_coins(values, coins), 6)

            assert found.correct <= right

    def test_are_at_least_one(self) -> None:
        with pytest.raises(ValueError, match="`guesses` must be"):
            OneRun(guesses=0)


class TestABound:
    def test_is_less_than_there_is(self) -> None:
        """Noise multiplier 0.7, epsilon 7.0, of 2,000 canaries."""
        true = Fourier().epsilon(
            [(Round(FullDataset(), (GaussianSum("all", 1.0, 0.7),)), 1)],
            delta=DELTA,
        )

        found = bound(normal_scores(1 / 0.7))

        assert 0.25 * true < found.epsilon < true
        assert (found.delta, found.confidence) == (DELTA, 0.95)
        assert found.assumptions
        assert found.neighbours == "add_or_remove_one"

    @pytest.mark.parametrize(
        "scores",
        [
            Scores([], []),
            Scores([1.0], []),
            Scores([], [1.0]),
            Scores([1.0], [0.0]),
            Scores([1.0] * 500, [1.0] * 500),
            normal_scores(0.0),
            normal_scores(-3.0),
        ],
        ids=str,
    )
    def test_is_0_without_a_difference(self, scores) -> None:
        assert bound(scores).epsilon == 0

    def test_is_less_with_more_confidence(self) -> None:
        scores = normal_scores(2.0)
        bounds = [
            bound(scores, confidence=each).epsilon
            for each in (0.5, 0.95, 0.999)
        ]

        assert bounds == sorted(bounds, reverse=True)
        assert bounds[0] > bounds[2] > 0

    def test_does_not_read_the_order_of_scores(self) -> None:
        scores = normal_scores(1.0)
        again = Scores(scores.inside[::-1], np.sort(scores.outside))

        assert bound(scores) == bound(again)

    @pytest.mark.parametrize(
        "question",
        [{"delta": 1.0}, {"delta": -0.1}, {"confidence": 1.0}],
        ids=str,
    )
    def test_of_what_is_no_probability_is_refused(self, question) -> None:
        with pytest.raises(ValueError, match=f"`{next(iter(question))}` must"):
            bound(normal_scores(1.0, 20), **question)
