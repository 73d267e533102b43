"""Attacks: no test of two laws beats the bound, and the bound is met."""

import math

import numpy as np
import pytest
from scipy import stats

from keras_dp.accountants import RDP
from keras_dp.accountants.trade_off_curves import (
    bayes_risk,
    trade_off,
)
from keras_dp.ledger import FullDataset, GaussianSum, PoissonSampling, Round
from tests.analytic_gaussian import AnalyticGaussian

RATES = np.concatenate([np.logspace(-9, -0.01, 400), [0.0, 0.5, 1.0]])


def gaussian(sensitivity: float):
    query = GaussianSum("sum", 1.0, 1 / sensitivity)
    return [(Round(FullDataset(), (query,)), 1)]


@pytest.mark.parametrize("sensitivity", [1e-3, 0.1, 1.0, 3.0, 8.0])
class TestTheGaussianCurve:
    """`G(x) = Phi(Phi^-1(1 - x) - mu)`: Dong, Roth, Su."""

    def test_is_bounded_and_nearly_met(self, sensitivity) -> None:
        """Never below by more than rounding; above as `lines` promises."""
        true = stats.norm.sf(stats.norm.isf(RATES) - sensitivity)

        curve = trade_off(gaussian(sensitivity), accountant=AnalyticGaussian())

        found = curve.largest_true_positive_rate(RATES)
        assert np.all(found >= true * (1 - 1e-12))
        assert np.all(found <= true * 1.05 + 2e-12)
        assert np.all(found - true <= 1e-3)

    def test_has_the_advantage_of_the_best_attack(self, sensitivity) -> None:
        """To the 1e-12 by which delta is rounded up."""
        true = 2 * stats.norm.cdf(sensitivity / 2) - 1
        ledger = gaussian(sensitivity)

        curve = trade_off(ledger, accountant=AnalyticGaussian(), lines=10)
        found = AnalyticGaussian().delta(ledger, epsilon=0.0)

        assert true <= found <= true * (1 + 5e-12) + 1e-15
        assert curve.advantage == pytest.approx(found, rel=1e-12, abs=1e-15)

    @pytest.mark.parametrize("prior", [1e-6, 0.1, 0.5, 0.7, 0.999])
    def test_has_the_bayes_risk(self, sensitivity, prior) -> None:
        """That of the likelihood-ratio test, whose threshold is the odds."""
        threshold = math.log((1 - prior) / prior) / sensitivity
        threshold += sensitivity / 2
        true = prior * stats.norm.cdf(threshold - sensitivity) + (
            1 - prior
        ) * stats.norm.sf(threshold)

        risk = bayes_risk(
            gaussian(sensitivity), prior=prior, accountant=AnalyticGaussian()
        )

        slack = 2e-12 * min(prior, 1 - prior)  # That of delta near 1.
        assert true - slack <= risk <= true * (1 + 1e-10)


def attack(noise_multiplier, probability, rounds, seed, trials=200_000):
    """Returns losses of simulated trainings, without and with the record."""
    generator = np.random.default_rng(seed)

    def losses(is_there):
        total = np.zeros(trials)
        for _ in range(rounds):
            chosen = generator.random(trials) < probability
            x = generator.normal(size=trials) * noise_multiplier
            x += chosen * is_there
            ratio = np.exp((x - 0.5) / noise_multiplier**2)
            total += np.log1p(probability * (ratio - 1))
        return total

    return losses(0), losses(1)


def p_value(curve, without, with_it, threshold) -> float:
    """Returns the chance of so many successes if the bound holds.

    The rate of false positives is bounded from above first, so that both
    samples count: half of the level is spent on each.
    """
    trials = without.size
    false = int(np.sum(without > threshold))
    most_false = stats.beta.isf(1e-6 / 2, false + 1, trials - false)
    most_true = float(curve.largest_true_positive_rate(most_false))
    true = int(np.sum(with_it > threshold))
    return float(stats.binom.sf(true - 1, trials, most_true))


class TestAttacksOnSampledRounds:
    """False alarms: 1e-6 for each of five thresholds."""

    NOISE, PROBABILITY, ROUNDS = 0.8, 0.2, 8

    def curve(self, noise_multiplier):
        query = GaussianSum("sum", 1.0, noise_multiplier)
        step = Round(PoissonSampling(self.PROBABILITY), (query,))
        return trade_off([(step, self.ROUNDS)], accountant=RDP())

    def thresholds(self, without):
        return np.quantile(without, [0.3, 0.7, 0.9, 0.99, 0.999])

    def test_do_not_beat_the_bound(self) -> None:
        curve = self.curve(self.NOISE)
        losses = attack(self.NOISE, self.PROBABILITY, self.ROUNDS, seed=1)

        for threshold in self.thresholds(losses[0]):
            assert p_value(curve, *losses, threshold) > 1e-6 / 2

    def test_beat_that_of_twice_the_noise(self) -> None:
        """The control: a bound that is wrong is found to be."""
        curve = self.curve(2 * self.NOISE)
        losses = attack(self.NOISE, self.PROBABILITY, self.ROUNDS, seed=1)

        values = [
            p_value(curve, *losses, threshold)
            for threshold in self.thresholds(losses[0])
        ]
        assert min(values) < 1e-6 / 2
