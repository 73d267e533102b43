"""Trade-off curves: what is at their ends, and what they refuse."""

import numpy as np
import pytest

from keras_dp.accountants import RDP
from keras_dp.accountants.trade_off_curves import (
    TradeOff,
    bayes_risk,
    trade_off,
)
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    Round,
)
from tests.analytic_gaussian import AnalyticGaussian
from tests.unit.accountants.sums import LAPLACE

STEP = Round(PoissonSampling(0.1), (GaussianSum("sum", 1.0, 1.0),))
BARE = Round(FullDataset(), (NonPrivateSum("loss"),))
RATES = np.linspace(0, 1, 1001)


class TestTheCurve:
    def test_of_an_empty_ledger_is_that_of_guessing(self) -> None:
        curve = trade_off([])

        assert curve.advantage <= 1e-15
        np.testing.assert_allclose(
            curve.largest_true_positive_rate(RATES), RATES, rtol=1e-14
        )

    def test_of_a_bare_sum_bounds_nothing(self) -> None:
        assert trade_off([(BARE, 1)]).advantage == 1

    @pytest.mark.parametrize("accountant", [RDP(), RDP(conversion="moments")])
    def test_is_concave_rising_and_symmetric(self, accountant) -> None:
        """Each up to the rounding of numbers near 1."""
        curve = trade_off([(STEP, 100)], accountant=accountant, lines=30)

        positives = curve.largest_true_positive_rate(RATES)
        assert np.all(np.diff(positives) >= -1e-15)
        assert np.all(np.diff(positives, 2) <= 1e-14)
        assert np.all(positives >= RATES)
        mirrored = curve.largest_true_positive_rate(1 - positives)
        assert np.all(mirrored <= 1 - RATES + 2e-12)

    def test_of_a_pure_guarantee_is_that_of_randomized_response(self) -> None:
        """Corner at `x = 1 / (1 + e)`, where the power is `e / (1 + e)`."""
        curve = TradeOff((1.0,), (0.0,))
        share = np.e / (1 + np.e)

        assert curve.advantage == pytest.approx(2 * share - 1, rel=1e-14)
        found = curve.largest_true_positive_rate(1 - share)
        assert found == pytest.approx(share, rel=1e-14)

    def test_holds_a_vast_epsilon(self) -> None:
        """Beyond what exp() can hold, the least rates are bounded still."""
        curve = trade_off(
            [(Round(FullDataset(), (GaussianSum("sum", 1.0, 0.02),)), 1)],
            accountant=AnalyticGaussian(),
        )

        assert curve.epsilons[-1] > 1000
        assert curve.largest_true_positive_rate(0.0) <= 2e-12


class TestTheRisk:
    @pytest.mark.parametrize("prior", [0.0, 0.2, 0.5, 1.0])
    def test_of_an_empty_ledger_is_that_of_guessing(self, prior) -> None:
        risk = bayes_risk([], prior=prior)

        assert risk == pytest.approx(min(prior, 1 - prior), rel=1e-14)

    def test_of_a_bare_sum_is_nothing(self) -> None:
        assert bayes_risk([(BARE, 1)], prior=0.5) == 0


class TestArguments:
    @pytest.mark.parametrize("prior", [-0.1, 1.1, float("nan")])
    def test_prior(self, prior) -> None:
        with pytest.raises(ValueError, match="`prior`"):
            bayes_risk([], prior=prior)

    def test_lines(self) -> None:
        with pytest.raises(ValueError, match="`lines`"):
            trade_off([], lines=1)

    @pytest.mark.parametrize("rate", [-0.1, [0.0, 1.1], float("nan")])
    def test_rates(self, rate) -> None:
        curve = trade_off([(STEP, 1)], lines=2, accountant=RDP())

        with pytest.raises(ValueError, match="`false_positive_rate`"):
            curve.largest_true_positive_rate(rate)

    @pytest.mark.parametrize(
        ("epsilons", "deltas"),
        [((), ()), ((0.0,), ()), ((0.0,), (1.1,)), ((-1.0,), (0.1,))],
    )
    def test_pairs(self, epsilons, deltas) -> None:
        with pytest.raises(ValueError, match="must be"):
            TradeOff(epsilons, deltas)

    @pytest.mark.parametrize(
        "ask", [trade_off, lambda *a, **k: bayes_risk(*a, prior=0.5, **k)]
    )
    def test_rounds_without_a_bound(self, ask) -> None:
        drawn = Round(FixedSizeWithoutReplacement(1, 10), (LAPLACE,))

        with pytest.raises(UnsupportedEventError):
            ask([(drawn, 1)])
        with pytest.raises(UnsupportedEventError):
            ask([(STEP, 1)], accountant=AnalyticGaussian())
        with pytest.raises(ValueError, match="`neighbours`"):
            ask([(STEP, 1)], accountant=RDP(), neighbours="other")
