"""Attacks: the best tests and reconstructions do not beat their bounds."""

import math

import numpy as np
import pytest
from scipy import stats

from keras_dp.accountants.trade_off_curves import (
    TradeOff,
    bayes_risk,
    trade_off,
)
from keras_dp.ledger import FullDataset, GaussianSum, Round
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


EPSILONS = np.concatenate([[0.0], np.geomspace(0.01, 8, 60)])


def hockey_stick(p, q, epsilon):
    return np.maximum(p - np.exp(epsilon) * q, 0).sum()


def curve_of(laws, others):
    """Returns the bound on attacks, from the definition of delta.

    Args:
        laws: `[secrets, outputs]`, the chance of each output.
        others: `[others, outputs]`, the laws of what may be neighbours.
    """
    deltas = [
        max(
            max(hockey_stick(p, q, each), hockey_stick(q, p, each))
            for p in laws
            for q in others
        )
        for each in EPSILONS
    ]
    return TradeOff(tuple(EPSILONS), tuple(np.minimum(deltas, 1.0)))


def best(laws, prior, hits):
    """Returns the success of the best attack, which sees an output.

    Args:
        laws: `[secrets, outputs]`.
        prior: The chance of each secret.
        hits: `[secrets, guesses]`, whether a guess is close enough.
    """
    return ((prior[:, None] * laws).T @ hits).max(axis=1).sum()


def mechanism(seed):
    """Returns laws of some outputs for secrets, a prior, and hits."""
    generator = np.random.default_rng(seed)
    secrets, outputs = generator.integers(2, 7, 2)
    spread = 10 ** generator.uniform(-1, 1)
    laws = generator.dirichlet([spread] * outputs, secrets + 1)
    laws = 0.02 / outputs + 0.98 * laws
    prior = generator.dirichlet([1.0] * secrets)
    hits = np.eye(secrets, dtype=bool)
    hits |= generator.random((secrets, secrets)) < 0.3 * (seed % 2)
    return laws[:-1], laws[-1:], prior, hits


@pytest.mark.parametrize("seed", range(40))
class TestAFiniteMechanism:
    """The attack of Bayes, who knows the prior and the laws, is the best."""

    def test_with_the_unit_left_out(self, seed) -> None:
        """Neighbours are a secret's law and that without the unit."""
        laws, without, prior, hits = mechanism(seed)

        curve = curve_of(laws, without)

        kappa = (prior @ hits).max()
        bound = curve.largest_reconstruction_rate(kappa)
        found = best(laws, prior, hits)
        # Rounding: a mechanism may tell nothing of the best guess.
        assert kappa * (1 - 1e-12) <= found <= bound

    def test_with_the_unit_replaced(self, seed) -> None:
        """Neighbours are the laws of any two secrets."""
        laws, _, prior, hits = mechanism(seed)

        curve = curve_of(laws, laws)

        kappa = (prior @ hits).max()
        assert best(laws, prior, hits) <= curve.largest_reconstruction_rate(
            kappa
        )
