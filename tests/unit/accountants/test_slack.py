"""Slack: what every accountant, budget and attack makes of it."""

import dataclasses
import math
import random
from fractions import Fraction

import pytest

from keras_dp.accountants import RDP, Fourier, bayes_risk, trade_off
from keras_dp.accountants.groups import UnitGroup
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Gaussian,
    SampledGaussian,
    Slack,
)
from keras_dp.accountants.normalize.thresholds import (
    chance_to_pass,
    least_threshold,
)
from keras_dp.accountants.replay import group_of
from keras_dp.accountants.slack import split, with_slack, without_slack
from keras_dp.budgets import FixedPlan, RenyiFilter, guarantee
from keras_dp.errors import BudgetExceededError, UnsupportedEventError
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
    ThresholdedSum,
)
from keras_dp.planning import rounds_left
from tests.analytic_gaussian import AnalyticGaussian

THRESHOLD = least_threshold(1.0, 4.0, 20, 1e-6)
CHANCE = chance_to_pass(1.0, 4.0, 20, THRESHOLD)
WORDS = Round(FullDataset(), (ThresholdedSum("w", 1.0, 4.0, 20, THRESHOLD),))
BARE = Round(FullDataset(), (GaussianSum("w", 1.0, 4.0),))
STEP = Round(PoissonSampling(0.01), (GaussianSum("g", 1.0, 1.0),))
ACCOUNTANTS = [RDP(), RDP(conversion="moments"), Fourier()]


def sampled_with(chance):
    return (
        CountedMechanism(SampledGaussian(1.0, 0.01), 500),
        CountedMechanism(Slack(chance), 1),
    )


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=repr)
class TestEveryAccountant:
    def test_takes_slack_from_delta(self, accountant) -> None:
        found = accountant.epsilon([(WORDS, 3)], delta=1e-5)

        without = accountant.epsilon([(BARE, 3)], delta=1e-5 - 3 * CHANCE)
        assert found == pytest.approx(without, rel=1e-12)
        assert found > accountant.epsilon([(BARE, 3)], delta=1e-5)
        delta = accountant.delta([(BARE, 3)], epsilon=2.0) + 3 * CHANCE
        both = accountant.delta([(WORDS, 3)], epsilon=2.0)
        assert delta <= both <= delta * (1 + 1e-9)

    def test_has_no_epsilon_for_less_than_the_slack(self, accountant) -> None:
        for delta in (0.0, 1e-9, CHANCE, 3 * CHANCE):
            assert accountant.epsilon([(WORDS, 3)], delta=delta) == math.inf
        assert accountant.epsilon([(WORDS, 3)], delta=4 * CHANCE) < math.inf

    def test_allows_everything_at_a_delta_of_one(self, accountant) -> None:
        assert accountant.epsilon([(WORDS, 10**7)], delta=1.0) == 0
        assert accountant.delta([(WORDS, 10**7)], epsilon=1e4) == 1

    def test_replays_slack_alone(self, accountant) -> None:
        rounds = (CountedMechanism(Slack(1e-6), 2),)

        accountant.check_supported(rounds)
        assert accountant.epsilon_of(rounds, 3e-6) == 0
        assert accountant.epsilon_of(rounds, 2e-6) == math.inf
        assert accountant.profile_of(rounds)(5.0) == pytest.approx(2e-6)

    def test_takes_a_threshold_that_few_keys_pass(self, accountant) -> None:
        words = ThresholdedSum("w", 1.0, 1.0, 1, threshold=1e3)
        sums = words, GaussianSum("w", 1.0, 1.0)
        drawn, bare = (
            [(Round(PoissonSampling(0.01), (each,)), 10)] for each in sums
        )

        found = accountant.epsilon(drawn, delta=1e-6)
        assert found == accountant.epsilon(bare, delta=1e-6)
        found = accountant.delta(drawn, epsilon=0.7)
        assert found == pytest.approx(accountant.delta(bare, epsilon=0.7))


class TestBounds:
    def test_have_the_mechanisms_alone_as_lower_ones(self) -> None:
        ledger = [(WORDS, 2), (STEP, 100)]
        bare = [(BARE, 2), (STEP, 100)]
        by = Fourier()

        epsilons = by.epsilon_bounds(ledger, delta=1e-5)
        deltas = by.delta_bounds(ledger, epsilon=1.0)

        assert epsilons.lower == by.epsilon_bounds(bare, delta=1e-5).lower
        assert epsilons.upper == by.epsilon(ledger, delta=1e-5)
        assert epsilons.lower < epsilons.upper
        assert deltas.lower == by.delta_bounds(bare, epsilon=1.0).lower
        assert deltas.upper == by.delta(ledger, epsilon=1.0)
        assert "thresholds" in epsilons.method
        assert "thresholds" in deltas.method

    def test_are_infinite_above_where_delta_is_below_the_slack(self) -> None:
        found = Fourier().epsilon_bounds([(WORDS, 1)], delta=CHANCE / 2)

        assert 0 < found.lower < found.upper == math.inf


class TestGroups:
    @pytest.mark.parametrize("size", [1, 2, 5])
    def test_have_the_exposure_of_the_group(self, size) -> None:
        ledger = [(WORDS, 1)]
        chance = chance_to_pass(1.0, 4.0, 20, THRESHOLD, size)
        nearer = Round(FullDataset(), (GaussianSum("w", 1.0, 4.0 / size),))

        found = group_of(ledger, None, None, size)

        assert found.is_pair
        epsilon = found.epsilon(1e-3)
        assert epsilon == pytest.approx(
            AnalyticGaussian().epsilon([(nearer, 1)], delta=1e-3 - chance),
            rel=1e-9,
        )
        assert found.delta(epsilon) == pytest.approx(1e-3, rel=1e-6)

    def test_keep_the_pair_of_other_rounds(self) -> None:
        assert group_of([(WORDS, 1), (STEP, 9)], None, None, 4).is_pair

    @pytest.mark.parametrize(
        "size", [2, pytest.param(5, marks=pytest.mark.standard)]
    )
    def test_take_the_textbook_bound_for_other_slack(self, size) -> None:
        rounds, by = sampled_with(1e-7), Fourier()
        group = UnitGroup(by, rounds, size)

        epsilon = group.epsilon(1e-2)

        share = epsilon / size
        grown = by.profile_of(rounds)(share) * sum(
            math.exp(j * share) for j in range(size)
        )
        assert not group.is_pair
        assert grown == pytest.approx(1e-2, rel=1e-5)
        assert group.delta(epsilon) == pytest.approx(1e-2, rel=1e-5)

    def test_have_no_bound_where_slack_grows_too_much(self) -> None:
        group = UnitGroup(Fourier(), sampled_with(1e-6), 11)

        assert group.epsilon(1e-5) == math.inf


class TestAttacks:
    def test_have_true_positives_without_false_ones(self) -> None:
        curve = trade_off([(WORDS, 1)], lines=40)

        assert len(curve.epsilons) == 40
        assert CHANCE <= curve.largest_true_positive_rate(0.0) <= 2 * CHANCE
        bare = trade_off([(BARE, 1)], lines=40)
        assert curve.advantage - bare.advantage == pytest.approx(
            CHANCE, rel=1e-6
        )
        assert curve.largest_true_positive_rate(1e-3) == pytest.approx(
            bare.largest_true_positive_rate(1e-3) + CHANCE, rel=1e-2
        )

    def test_err_less_by_what_delta_grows(self) -> None:
        found = bayes_risk([(WORDS, 1)], prior=0.5)

        bare = bayes_risk([(BARE, 1)], prior=0.5)
        assert found == pytest.approx(bare - CHANCE / 2, rel=1e-12)


class TestPlanning:
    def test_counts_the_rounds_that_slack_leaves(self) -> None:
        """Ten rounds take more than this delta, whatever epsilon is."""
        assert rounds_left([], WORDS, target_epsilon=100.0, delta=9.9e-6) == 9


class TestBudgets:
    def test_filters_refuse_and_name_the_remedy(self) -> None:
        with pytest.raises(UnsupportedEventError, match="FixedPlan"):
            RenyiFilter(3.0, 1e-5).prices(WORDS)

    def test_a_plan_pays(self) -> None:
        plan = FixedPlan([(WORDS, 2), (STEP, 10)], epsilon=3.0, delta=1e-5)

        assert plan.cost == Fourier().epsilon(plan.rounds, delta=1e-5)
        assert plan.prices(WORDS) == ((0, 1),)
        other = dataclasses.replace(WORDS.queries[0], threshold=1.0)
        with pytest.raises(BudgetExceededError):
            plan.prices(Round(FullDataset(), (other,)))
        with pytest.raises(BudgetExceededError):
            FixedPlan([(WORDS, 11)], epsilon=100.0, delta=1e-5)

    def test_a_run_keeps_to_its_plan(self) -> None:
        """A round with another threshold is not the one that was planned."""
        looser = dataclasses.replace(WORDS.queries[0], threshold=THRESHOLD - 1)
        renamed = dataclasses.replace(WORDS.queries[0], name="other")
        for query, basis in ((renamed, "plan"), (looser, "as if fixed")):
            ledger = PrivacyLedger.in_memory(dataset="test")
            with ledger.start_run("words") as run:
                run.plan([(WORDS, 1)])
                run.record(FullDataset(), [query])
            assert guarantee(ledger, delta=1e-3).basis == basis


def test_slack_adds_up_and_is_split_off() -> None:
    gaussian = CountedMechanism(Gaussian(1.0), 1)

    total, rest = split((gaussian, CountedMechanism(Slack(1e-6), 5)))

    assert rest == (gaussian,)
    assert 5e-6 <= total <= 5e-6 * (1 + 1e-14)
    assert split((gaussian,)) == (0, (gaussian,))


def test_delta_with_slack_is_rounded_up_and_without_it_down() -> None:
    generator = random.Random(1)
    for _ in range(500):
        delta, slack = (10 ** generator.uniform(-12, -1) for _ in range(2))
        exact = Fraction(delta) + Fraction(slack)
        assert exact <= with_slack(delta, slack) <= float(exact) * (1 + 1e-14)
        left = Fraction(delta) - Fraction(slack)
        assert without_slack(delta, slack) <= max(left, 0)
    assert without_slack(0.5, 0.5) == 0
