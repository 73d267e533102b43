"""A ledger whose units have several records is not read as if of one."""

import pytest

from keras_dp.accountants import Fourier, bayes_risk, trade_off
from keras_dp.ledger import (
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
)
from keras_dp.planning import calibrate_noise, epsilon_curve, rounds_left

STEP = Round(PoissonSampling(0.01), (GaussianSum("sum", 1.0, 4.0),))
QUESTIONS = [
    lambda of, **size: Fourier().epsilon(of, delta=1e-5),
    lambda of, **size: Fourier().delta(of, epsilon=1.0),
    lambda of, **size: Fourier().epsilon_bounds(of, delta=1e-5),
    lambda of, **size: Fourier().delta_bounds(of, epsilon=1.0),
    lambda of, **size: trade_off(of, lines=2, **size),
    lambda of, **size: bayes_risk(of, prior=0.5, **size),
    lambda of, **size: epsilon_curve(of, delta=1e-5, points=2, **size),
    lambda of, **size: rounds_left(
        of, STEP, target_epsilon=9.0, delta=1e-5, most=2, **size
    ),
    lambda of, **size: calibrate_noise(
        target_epsilon=9.0,
        delta=1e-5,
        sampling_probability=0.1,
        rounds=1,
        ledger=of,
        **size,
    ),
]


@pytest.mark.parametrize("ask", QUESTIONS)
def test_a_number_for_one_record_is_warned_of(ask, caplog) -> None:
    ledger = PrivacyLedger.in_memory(
        dataset="d", unit="patient", rows_per_unit=2
    )
    ledger.record(STEP.sampling, STEP.queries)

    ask(ledger)

    assert "one patient has up to 2 of them" in caplog.text


@pytest.mark.parametrize("ask", QUESTIONS)
def test_other_numbers_are_not(ask, caplog) -> None:
    several = PrivacyLedger.in_memory(
        dataset="d", unit="patient", rows_per_unit=2
    )
    one = PrivacyLedger.in_memory(dataset="d", unit="patient")
    for each in (several, one):
        each.record(STEP.sampling, STEP.queries)

    ask(one)
    ask(several.rounds)
    if ask not in QUESTIONS[:4]:
        ask(several, group_size=2)

    assert "one patient has" not in caplog.text
