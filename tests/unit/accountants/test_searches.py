"""Searches among the rounds of a ledger."""

import math
from typing import Any

import pytest

from keras_dp.accountants import RDP, Fourier, available_accountants
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    SampledGaussian,
    Selected,
)
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.replay import strongest_neighbours
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    BandedToeplitz,
    CorrelatedSum,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    Round,
    Selection,
    TruncatedNegativeBinomial,
    TruncatedPoissonSampling,
    UnverifiedSampling,
)
from tests.analytic_gaussian import AnalyticGaussian

LAW = TruncatedNegativeBinomial(1, 20)


def full(noise: float, count: int = 1) -> tuple[Round, int]:
    return Round(FullDataset(), (GaussianSum("all", 1.0, noise),)), count


def search(*plans: Any, law: Any = LAW, count: int = 1) -> tuple[Round, int]:
    return Selection(plans, law).round, count


def epsilon(ledger: Any, **options: Any) -> float:
    return Fourier().epsilon(ledger, delta=1e-5, **options)


def test_the_trials_are_normalized_by_themselves() -> None:
    step = BandedToeplitz((1.0,))
    row = Round(FullDataset(), (CorrelatedSum("t", 1, 2, step, 1, "one"),))
    sampled = Round(PoissonSampling(0.1), (GaussianSum("g", 1.0, 3.0),))
    ledger = [search([(row, 1)], [(sampled, 7)]), (row, 1)]

    found = normalize(ledger, "zero_out")

    plans = (
        normalize([(row, 1)], "zero_out"),
        (CountedMechanism(SampledGaussian(3.0, 0.1), 7),),
    )
    # The mechanism of the trials is not that of the other rounds.
    assert found == (*plans[0], (Selected(plans, LAW), 1))


def test_the_relation_is_one_that_all_trials_support() -> None:
    cut = Round(UnverifiedSampling(), full(2.0)[0].queries)
    drawn = Round(FixedSizeWithoutReplacement(5, 50), full(2.0)[0].queries)

    assert strongest_neighbours([search([full(2.0)])]) == "add_or_remove_one"
    assert strongest_neighbours([search([(cut, 1)])]) == "replace_one"
    assert (
        strongest_neighbours([search([(cut, 1)], [(drawn, 1)])])
        == "replace_one"
    )
    with pytest.raises(UnsupportedEventError, match="support"):
        epsilon([search([(cut, 1)])], neighbours="add_or_remove_one")
    # A replaced record moves a sum by twice its bound.
    assert epsilon(
        [search([full(4.0)])], neighbours="replace_one"
    ) == pytest.approx(epsilon([search([full(2.0)])]), rel=1e-9)


def test_only_accountants_of_profiles_and_moments_have_a_price() -> None:
    ledger = [search([full(2.0)])]

    assert available_accountants(ledger) == (Fourier(), RDP())
    with pytest.raises(UnsupportedEventError, match="_accountants"):
        AnalyticGaussian().epsilon(ledger, delta=1e-5)


@pytest.mark.parametrize("law", [LAW], ids=repr)
@pytest.mark.parametrize("accountant", [Fourier(), RDP()], ids=repr)
class TestPrices:
    def test_grow_with_the_trials(self, accountant, law) -> None:
        more = type(law)(
            **{
                **{name: getattr(law, name) for name in law.__slots__},
                "mean": 2 * law.mean,
            }
        )
        one = accountant.epsilon([full(2.0)], delta=1e-5)
        prices = [
            accountant.epsilon([search([full(2.0)], law=each)], delta=1e-5)
            for each in (law, more)
        ]

        assert one < prices[0] < prices[1]

    def test_of_delta_invert_those_of_epsilon(self, accountant, law) -> None:
        ledger = [search([full(2.0)], law=law), full(9.0)]
        found = accountant.epsilon(ledger, delta=1e-5)

        # Delta and epsilon may be asked on different grids.
        assert accountant.delta(ledger, epsilon=found) == pytest.approx(
            1e-5, rel=0.03
        )

    def test_of_more_rounds_are_larger(self, accountant, law) -> None:
        first = search([full(2.0)], law=law)
        prices = [
            accountant.epsilon(ledger, delta=1e-5)
            for ledger in ([first], [first, full(9.0)], [(first[0], 2)])
        ]

        assert prices == sorted(prices)
        # Next to nothing costs next to nothing.
        assert accountant.epsilon(
            [first, full(1e6)], delta=1e-5
        ) == pytest.approx(prices[0], rel=5e-3)

    def test_of_bare_trials_are_infinite(self, accountant, law) -> None:
        bare = Round(FullDataset(), (NonPrivateSum("debug"),))
        ledger = [search([full(2.0), (bare, 1)], law=law)]

        assert accountant.epsilon(ledger, delta=1e-5) == math.inf
        assert accountant.delta(ledger, epsilon=1.0) == 1

    def test_of_noise_alone_are_nothing(self, accountant, law) -> None:
        free = Round(FullDataset(), (GaussianSum("g", 0.0, 1.0),))

        assert (
            accountant.epsilon([search([(free, 1)], law=law)], delta=0.1) == 0
        )


def test_bounds_are_of_one_trial_and_of_the_search() -> None:
    found = Fourier().epsilon_bounds([search([full(2.0)])], delta=1e-5)

    assert found.lower == pytest.approx(epsilon([full(2.0)]), rel=1e-6)
    assert found.upper == epsilon([search([full(2.0)])])
    assert "trial" in found.method


def test_a_unit_of_several_records_is_that_of_the_trials() -> None:
    sampled = Round(PoissonSampling(0.02), full(1.0)[0].queries)

    assert epsilon([search([full(4.0)])], units=2) == pytest.approx(
        epsilon([search([full(2.0)])]), rel=1e-9
    )
    one = epsilon([search([(sampled, 9)])])
    two = epsilon([search([(sampled, 9)])], units=2)
    assert one < two < 3 * one
    # No pair is known: the trial takes the textbook bound, not the search.
    replaced = [
        epsilon([search([(sampled, 1)])], neighbours="replace_one", units=each)
        for each in (1, 2)
    ]
    assert replaced[0] < replaced[1]
    # RDP takes the textbook bound for the search.
    assert two < RDP().epsilon([search([(sampled, 9)])], delta=1e-5, units=2)


def test_what_truncation_takes_from_delta_is_taken_once_a_trial() -> None:
    sampling = TruncatedPoissonSampling(0.01, 200, 10_000)
    truncated = Round(sampling, full(1.0)[0].queries)
    plain = Round(PoissonSampling(0.01), full(1.0)[0].queries)

    least = epsilon([search([(plain, 100)])]) * (1 - 1e-7)
    assert least <= epsilon([search([(truncated, 100)])]) < math.inf
    assert epsilon([search([(truncated, 10**9)])]) == math.inf
