"""Scores, and the lower bounds that estimators make of them."""

import numpy as np
import pytest

from keras_dp.accountants import AnalyticGaussian, trade_off
from keras_dp.accountants.attacks.trade_off import TradeOff
from keras_dp.auditing import (
    GaussianModel,
    OneRun,
    OneRunFDP,
    Scores,
    p_value_of_claim,
)
from keras_dp.auditing.estimators.guesses import guesses_of
from keras_dp.ledger import FullDataset, GaussianSum, Round

DELTA = 1e-5
ESTIMATORS = [OneRun(), OneRunFDP(), GaussianModel()]


def normal_scores(mu, count=2000, seed=0):
    """Scores of a Gaussian release of each coin, for itself."""
    generator = np.random.Generator(np.random.Philox(seed))
    coins = generator.random(count) < 0.5
    return Scores.from_coins(generator.normal(size=count) + mu * coins, coins)


def gaussian_claim(noise_multiplier):
    release = Round(FullDataset(), (GaussianSum("all", 1.0, noise_multiplier),))
    return trade_off([(release, 1)], accountant=AnalyticGaussian())


class TestScores:
    def test_are_divided_by_coins(self) -> None:
        scores = Scores.from_coins([1.0, 2.0, 3.0], [True, False, True])

        assert scores.inside.tolist() == [1.0, 3.0]
        assert scores.outside.tolist() == [2.0]
        assert scores.neighbours == "add_or_remove_one"

    def test_cannot_be_changed(self) -> None:
        with pytest.raises(ValueError, match="read-only"):
            Scores([1.0], [2.0]).inside[0] = 3.0

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

    def test_are_four_times_the_root_by_default(self) -> None:
        assert guesses_of(normal_scores(1.0, 10_000), None).guesses == 400
        assert guesses_of(normal_scores(1.0, 9), None).guesses == 9

    @pytest.mark.parametrize("make", [OneRun, OneRunFDP])
    def test_are_at_least_one(self, make) -> None:
        with pytest.raises(ValueError, match="`guesses` must be"):
            make(guesses=0)


@pytest.mark.parametrize(
    "estimator", ESTIMATORS, ids=lambda x: type(x).__name__
)
class TestEveryEstimator:
    def test_finds_less_than_there_is(self, estimator) -> None:
        """Noise multiplier 0.7, epsilon 7.0, of 2,000 canaries."""
        true = AnalyticGaussian().epsilon(
            [(Round(FullDataset(), (GaussianSum("all", 1.0, 0.7),)), 1)],
            delta=DELTA,
        )

        found = estimator.epsilon(normal_scores(1 / 0.7), delta=DELTA)

        assert 0.25 * true < found.epsilon < true
        assert (found.delta, found.confidence) == (DELTA, 0.95)
        assert found.estimator == type(estimator).__name__
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
        ],
        ids=str,
    )
    def test_finds_nothing_in_too_few_or_equal_scores(
        self, estimator, scores
    ) -> None:
        assert estimator.epsilon(scores, delta=DELTA).epsilon == 0

    def test_finds_nothing_without_a_difference(self, estimator) -> None:
        assert estimator.epsilon(normal_scores(0.0), delta=DELTA).epsilon == 0

    def test_finds_nothing_if_scores_are_the_wrong_way_round(
        self, estimator
    ) -> None:
        assert estimator.epsilon(normal_scores(-3.0), delta=DELTA).epsilon == 0

    def test_finds_less_with_more_confidence(self, estimator) -> None:
        scores = normal_scores(2.0)
        bounds = [
            estimator.epsilon(scores, delta=DELTA, confidence=each).epsilon
            for each in (0.5, 0.95, 0.999)
        ]

        assert bounds == sorted(bounds, reverse=True)
        assert bounds[0] > bounds[2] > 0

    def test_does_not_read_the_order_of_scores(self, estimator) -> None:
        scores = normal_scores(1.0)
        again = Scores(scores.inside[::-1], np.sort(scores.outside))

        assert estimator.epsilon(scores, delta=DELTA).epsilon == pytest.approx(
            estimator.epsilon(again, delta=DELTA).epsilon, rel=1e-12
        )

    @pytest.mark.parametrize(
        "question",
        [{"delta": 1.0}, {"delta": -0.1}, {"delta": 0.1, "confidence": 1.0}],
        ids=str,
    )
    def test_refuses_what_is_no_probability(self, estimator, question) -> None:
        with pytest.raises(ValueError, match="must be"):
            estimator.epsilon(normal_scores(1.0, 20), **question)


@pytest.mark.parametrize("estimator", [OneRunFDP(), GaussianModel()])
def test_a_gaussian_release_has_no_epsilon_at_delta_0(estimator) -> None:
    with pytest.raises(ValueError, match="`delta` must be > 0"):
        estimator.epsilon(normal_scores(1.0), delta=0.0)


def test_others_have_one() -> None:
    assert OneRun().epsilon(normal_scores(3.0), delta=0.0).epsilon > 1


class TestTheClaimOfALedger:
    def test_is_contradicted_by_a_training_with_half_the_noise(self) -> None:
        assert p_value_of_claim(normal_scores(2.0), gaussian_claim(1.0)) < 0.02

    def test_is_not_by_one_with_more(self) -> None:
        assert p_value_of_claim(normal_scores(0.8), gaussian_claim(1.0)) > 0.5

    def test_is_about_the_relation_of_the_scores_and_their_records(
        self,
    ) -> None:
        scores = normal_scores(2.0)
        release = Round(FullDataset(), (GaussianSum("all", 1.0, 1.0),))
        replaced = Scores(scores.inside, scores.outside, "replace_one")

        added = p_value_of_claim(scores, [(release, 1)])

        assert added == pytest.approx(
            p_value_of_claim(scores, gaussian_claim(1.0)), rel=0.01
        )
        # The records of two canaries, or of one that replaces another, move
        # the sum twice as far.
        for twice in (
            p_value_of_claim(replaced, [(release, 1)]),
            p_value_of_claim(scores, [(release, 1)], records=2),
        ):
            assert twice > 0.5 > added

    def test_is_not_if_it_claims_nothing(self) -> None:
        nothing = TradeOff((0.0,), (1.0,))

        assert p_value_of_claim(normal_scores(9.0), nothing) == 1

    def test_and_no_canaries_contradict_nothing(self) -> None:
        assert p_value_of_claim(Scores([], []), gaussian_claim(1.0)) == 1
