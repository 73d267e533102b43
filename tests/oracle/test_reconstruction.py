"""Reconstruction: the best attack is enumerated, and beats no bound."""

import numpy as np
import pytest
from scipy import stats

from keras_dp.accountants import RDP
from keras_dp.accountants.trade_off_curves import TradeOff, trade_off
from keras_dp.ledger import FullDataset, GaussianSum, PoissonSampling, Round
from tests.analytic_gaussian import AnalyticGaussian

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


@pytest.mark.parametrize("secrets", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
class TestRandomizedResponse:
    """The secret itself comes out most often; without it all come alike."""

    def laws(self, secrets, epsilon):
        laws = np.ones((secrets, secrets)) + np.expm1(epsilon) * np.eye(secrets)
        return laws / laws.sum(axis=1, keepdims=True)

    def curve(self, secrets, epsilon):
        laws = self.laws(secrets, epsilon)
        p, without = laws[0, 0], np.full(secrets, 1 / secrets)
        # The slopes of the curve, whose lines make it exact.
        slopes = {1.0, p * secrets, (1 - 1 / secrets) / (1 - p)}
        lines = sorted(map(float, np.log([*slopes])))
        deltas = [
            max(
                hockey_stick(laws[0], without, each),
                hockey_stick(without, laws[0], each),
            )
            for each in lines
        ]
        return TradeOff(tuple(lines), tuple(deltas))

    def best(self, secrets, epsilon):
        prior = np.full(secrets, 1 / secrets)
        return best(self.laws(secrets, epsilon), prior, np.eye(secrets))

    def test_meets_the_bound(self, secrets, epsilon) -> None:
        bound = self.curve(secrets, epsilon).largest_reconstruction_rate(
            1 / secrets
        )

        found = self.best(secrets, epsilon)
        assert found * (1 - 1e-12) <= bound <= found * (1 + 1e-12)

    def test_beats_that_of_a_little_less_epsilon(
        self, secrets, epsilon
    ) -> None:
        """The control: a bound that is wrong is found to be."""
        bound = self.curve(secrets, 0.99 * epsilon).largest_reconstruction_rate(
            1 / secrets
        )

        assert self.best(secrets, epsilon) > bound * (1 + 1e-4)


@pytest.mark.parametrize("sensitivity", [0.1, 1.0, 3.0])
def test_the_gaussian_has_its_closed_form(sensitivity) -> None:
    """`Phi(Phi^-1(kappa) + mu)`: Kaissis et al. (2023)."""
    kappa = np.array([1e-9, 1e-6, 1e-3, 0.1, 0.5, 0.9])
    true = stats.norm.cdf(stats.norm.ppf(kappa) + sensitivity)
    step = Round(FullDataset(), (GaussianSum("sum", 1.0, 1 / sensitivity),))

    curve = trade_off([(step, 1)], accountant=AnalyticGaussian())

    found = curve.largest_reconstruction_rate(kappa)
    assert np.all(found >= true * (1 - 1e-12))
    assert np.all(found <= true * 1.05 + 2e-12)


class TestATraining:
    """Somebody knows all records but one, and the ten that it may be.

    Their gradients are orthogonal and as long as the clip. The attacker sees
    the noised sum of every round, and names the likeliest record: no attack is
    better. False alarms: 1e-6.
    """

    NOISE, PROBABILITY, ROUNDS, RECORDS = 0.7, 0.3, 6, 10
    TRIALS = 100_000

    def bound(self, noise_multiplier):
        query = GaussianSum("sum", 1.0, noise_multiplier)
        step = Round(PoissonSampling(self.PROBABILITY), (query,))
        curve = trade_off([(step, self.ROUNDS)], accountant=RDP())
        return float(curve.largest_reconstruction_rate(1 / self.RECORDS))

    def hits(self):
        generator = np.random.default_rng(3)
        shape = self.TRIALS, self.RECORDS
        log_ratios = np.zeros(shape)
        for _ in range(self.ROUNDS):
            # By symmetry the record is the first one.
            sums = self.NOISE * generator.normal(size=shape)
            sums[:, 0] += generator.random(self.TRIALS) < self.PROBABILITY
            ratios = np.exp((sums - 0.5) / self.NOISE**2)
            log_ratios += np.log1p(self.PROBABILITY * (ratios - 1))
        return int(np.sum(log_ratios.argmax(axis=1) == 0))

    def p_value(self, noise_multiplier):
        return stats.binom.sf(
            self.hits() - 1, self.TRIALS, self.bound(noise_multiplier)
        )

    def test_gives_no_more_than_the_bound(self) -> None:
        assert self.p_value(self.NOISE) > 1e-6

    def test_gives_more_than_that_of_twice_the_noise(self) -> None:
        """The control: a bound that is wrong is found to be."""
        assert self.p_value(2 * self.NOISE) < 1e-6
