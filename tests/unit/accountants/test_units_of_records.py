"""A ledger whose units have several records is read for all of them."""

import math

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from keras_dp.accountants import RDP, Fourier, bayes_risk, trade_off
from keras_dp.accountants.replay import Replay
from keras_dp.budgets import FixedPlan, guarantee, open_account
from keras_dp.errors import BudgetExceededError
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
)
from keras_dp.planning import (
    calibrate_noise,
    calibrate_scale,
    plan,
    rounds_left,
)
from tests.analytic_gaussian import AnalyticGaussian

pytestmark = pytest.mark.standard

DELTA = 1e-5
STEP = Round(PoissonSampling(0.01), (GaussianSum("sum", 1.0, 4.0),))
FULL = Round(FullDataset(), (GaussianSum("sum", 1.0, 4.0),))


def patients(*rounds, rows=2):
    ledger = PrivacyLedger.in_memory(
        dataset="d", unit="patient", rows_per_unit=rows
    )
    with ledger.start_run("training") as run:
        for each, count in rounds:
            run.record(each.sampling, each.queries, count)
    return ledger


def by(accountant):
    return {
        f"{accountant.name}, epsilon": lambda of, **units: accountant.epsilon(
            of, delta=DELTA, **units
        ),
        f"{accountant.name}, delta": lambda of, **units: accountant.delta(
            of, epsilon=0.1, **units
        ),
    }


# Numbers that grow with the records that they are for.
QUESTIONS = {
    **by(Fourier()),
    **by(RDP()),
    **by(RDP(conversion="moments")),
    "epsilon_bounds": lambda of, **units: (
        Fourier().epsilon_bounds(of, delta=DELTA, **units).upper
    ),
    "delta_bounds": lambda of, **units: (
        Fourier().delta_bounds(of, epsilon=0.1, **units).upper
    ),
    "claim": lambda of, **units: Replay(of).claim(delta=DELTA, **units).epsilon,
    "bayes_risk": lambda of, **units: 1 - bayes_risk(of, prior=0.5, **units),
    "trade_off": lambda of, **units: trade_off(of, lines=2, **units).advantage,
    "rounds_left": lambda of, **units: (
        -rounds_left(of, STEP, target_epsilon=0.5, delta=DELTA, **units)
    ),
    "calibrate_noise": lambda of, **units: calibrate_noise(
        target_epsilon=0.5,
        delta=DELTA,
        sampling_probability=0.1,
        rounds=1,
        ledger=of,
        **units,
    ),
    "calibrate_scale": lambda of, **units: calibrate_scale(
        lambda scale: [
            (Round(FullDataset(), (GaussianSum("more", 1.0, scale),)), 1)
        ],
        target_epsilon=0.5,
        delta=DELTA,
        ledger=of,
        **units,
    ),
    "plan": lambda of, **units: (
        plan(
            1000,
            target_epsilon=0.5,
            delta=DELTA,
            epochs=1,
            batch_sizes=[10],
            ledger=of,
            **units,
        )
        .rows[0]
        .noise_multiplier
    ),
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
class TestANumber:
    def test_is_for_all_records_of_a_unit(self, ask) -> None:
        ledger = patients((STEP, 20))

        assert ask(ledger) == ask(ledger.rounds, units=2)
        assert ask(ledger) > ask(ledger.rounds)  # The control.

    def test_is_for_all_records_of_several_units(self, ask) -> None:
        ledger = patients((STEP, 20))

        assert ask(ledger, units=2) == ask(ledger.rounds, units=4)
        assert ask(ledger, units=2) > ask(ledger)

    def test_of_a_run_is_for_all_records_of_a_unit(self, ask) -> None:
        ledger = patients((STEP, 20))

        assert ask(ledger.runs[0]) == ask(ledger)

    def test_is_for_one_record_where_a_unit_has_one(self, ask) -> None:
        ledger = patients((STEP, 20), rows=1)

        assert ask(ledger) == ask(ledger.rounds)


def excess(epsilon, means, weights, stddev, *, is_reversed):
    """Returns a hockey-stick divergence by quadrature, from its definition."""

    def above(x):
        mixture = np.dot(weights, stats.norm.pdf(x, means, stddev))
        alone = stats.norm.pdf(x, 0, stddev)
        p, q = (alone, mixture) if is_reversed else (mixture, alone)
        return max(0.0, p - math.exp(epsilon) * q)

    return integrate.quad(
        above, -40, 50, limit=2000, points=np.linspace(-6, 9, 61)
    )[0]


@pytest.mark.full
@pytest.mark.parametrize(("rows", "q"), [(2, 0.3), (3, 1.0)])
def test_epsilon_is_that_of_the_definition(rows, q) -> None:
    """All samples of a unit's records are enumerated; each moves the sum by 1.

    One number of records more is the sum of `1` over those that are drawn, so
    that the output is a binomial mixture of normal distributions.
    """
    z, delta = 2.0, 1e-3
    drawn = np.arange(rows + 1)
    weights = stats.binom.pmf(drawn, rows, q)
    sampling = FullDataset() if q == 1 else PoissonSampling(q)
    release = Round(sampling, (GaussianSum("sum", 1.0, z),))

    truth = max(
        optimize.brentq(
            lambda epsilon, is_reversed=is_reversed: (
                excess(epsilon, drawn, weights, z, is_reversed=is_reversed)
                - delta
            ),
            0.0,
            10.0,
        )
        for is_reversed in (False, True)
    )

    ledger = patients((release, 1), rows=rows)
    # The quadrature is precise to 1e-8 of the mass.
    assert Fourier().epsilon(ledger, delta=delta) == pytest.approx(
        truth, abs=1e-4
    )
    assert RDP().epsilon(ledger, delta=delta) >= truth - 1e-4
    control = Fourier().epsilon(ledger.rounds, delta=delta)
    assert control < 0.8 * truth


@pytest.mark.full
def test_bounds_of_a_textbook_group_are_on_both_sides() -> None:
    """A unit has several records, so that one of them is attacked no better."""
    drawn = Round(FixedSizeWithoutReplacement(10, 1000), STEP.queries)
    ledger = patients((drawn, 20), rows=3)

    bounds = Fourier().epsilon_bounds(ledger, delta=DELTA)

    of_one = Fourier().epsilon_bounds(ledger.rounds, delta=DELTA)
    assert bounds.lower == of_one.lower
    assert bounds.upper == Fourier().epsilon(ledger, delta=DELTA)
    assert bounds.upper > 3 * of_one.upper
    assert "textbook bound for 3 records" in bounds.method


def test_a_plan_is_opened_for_the_unit_of_the_ledger() -> None:
    ledger = patients((FULL, 1), rows=3)

    opened = open_account(ledger, "all", FixedPlan([(FULL, 1)], 5.0, DELTA))

    found = guarantee(ledger, delta=DELTA)
    assert found.basis == "account"
    assert '"rows_per_unit":3' in opened.account.terms
    assert found.claim.epsilon == pytest.approx(
        AnalyticGaussian().epsilon([(FULL, 2)], units=3, delta=DELTA), rel=1e-9
    )


def test_a_plan_that_is_enough_for_one_record_only_is_refused() -> None:
    ledger = patients(rows=3)
    budget = FixedPlan([(FULL, 1)], 1.0, DELTA)

    with pytest.raises(BudgetExceededError, match="must cost at most"):
        open_account(ledger, "all", budget)
    assert not ledger.accounts
