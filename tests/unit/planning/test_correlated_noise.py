"""Strategies, their errors, and plans of correlated noise."""

import numpy as np
import pytest

from keras_dp.accountants import Fourier, strategy_sensitivity
from keras_dp.ledger import (
    BandedToeplitz,
    BinaryTree,
    CorrelatedSum,
    CyclicPoissonSampling,
    FullDataset,
    Round,
)
from keras_dp.planning import (
    calibrate_correlated_noise,
    calibrate_noise,
    optimize_strategy,
    plan_correlated_noise,
    prefix_sum_error,
)
from keras_dp.planning.correlated_noise import amplified

TERMS = {"target_epsilon": 1.0, "delta": 1e-5}
BANDS = BandedToeplitz((1.0, 0.5, 0.375, 0.3125))


def by_definition(strategy, rounds, separation, most):
    """Returns the error from matrices."""
    noise = np.tril(np.ones([rounds, rounds])) @ np.linalg.inv(
        strategy.matrix(rounds)
    )
    sensitivity = strategy_sensitivity(strategy, rounds, separation, most)
    return np.sqrt(np.square(noise).sum() / rounds) * sensitivity.upper


@pytest.mark.parametrize(
    "strategy", [BandedToeplitz((1.0,)), BANDS, BinaryTree()]
)
@pytest.mark.parametrize("setting", [(40, 1, None), (40, 8, 3), (40, 40, 1)])
def test_the_error_is_that_of_its_matrices(strategy, setting) -> None:
    rounds, separation, most = setting

    found = prefix_sum_error(
        strategy, rounds, min_separation=separation, max_participations=most
    )

    assert found == pytest.approx(by_definition(strategy, *setting))


@pytest.mark.parametrize("bands", [1, 2, 4])
def test_no_step_from_the_optimum_is_better(bands) -> None:
    """By differences of the definition, in each coefficient."""
    found = optimize_strategy(bands, 40)
    best = by_definition(found, 40, bands, None)

    assert found.bands == bands
    for place in range(1, bands):
        for step in (-1e-3, 1e-3):
            moved = [*found.coefficients]
            moved[place] += step
            assert by_definition(BandedToeplitz(moved), 40, bands, None) >= best


class TestNoise:
    def test_of_one_band_is_that_of_poisson_rounds(self) -> None:
        found = calibrate_correlated_noise(
            BandedToeplitz((1,)),
            50,
            target_epsilon=1.0,
            delta=1e-5,
            classes=1,
            sampling_probability=0.1,
        )

        assert found == pytest.approx(
            calibrate_noise(
                target_epsilon=1.0,
                delta=1e-5,
                sampling_probability=0.1,
                rounds=50,
            ),
            rel=1e-6,
        )

    @pytest.mark.parametrize(("classes", "probability"), [(4, 0.5), (4, 1.0)])
    @pytest.mark.parametrize("strategy", [BANDS, BinaryTree()])
    def test_meets_the_target(self, strategy, classes, probability) -> None:
        noise = calibrate_correlated_noise(
            strategy,
            10,
            target_epsilon=2.0,
            delta=1e-5,
            classes=classes,
            sampling_probability=probability,
        )

        event = CorrelatedSum("sum", 1.0, noise, strategy, 10, "one")
        rounds = [
            (
                Round(
                    CyclicPoissonSampling(f"a-{i}", classes, probability),
                    (event,),
                ),
                count,
            )
            for i, count in enumerate((4, 4, 2))
        ]
        assert 2.0 * (1 - 1e-5) <= Fourier().epsilon(rounds, delta=1e-5) <= 2.0

    def test_in_every_round_is_that_of_the_full_data(self) -> None:
        noise = calibrate_correlated_noise(
            BANDS, 10, target_epsilon=2.0, delta=1e-5, classes=1
        )

        event = CorrelatedSum("sum", 1.0, noise, BANDS, 10, "one")
        epsilon = Fourier().epsilon(
            [(Round(FullDataset(), (event,)), 10)], delta=1e-5
        )
        assert 2.0 * (1 - 1e-5) <= epsilon <= 2.0


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_meets_the_target_and_not_with_less_noise(share: float) -> None:
    (found,) = plan_correlated_noise(
        8, sampling_probability=0.1, bands=[2], **TERMS
    )
    event = CorrelatedSum(
        "sum", 1.0, share * found.noise_multiplier, found.strategy, 8, "m"
    )
    rounds = [
        Round(
            CyclicPoissonSampling(
                f"cycle-{each // 2}", 2, found.sampling_probability
            ),
            (event,),
        )
        for each in range(8)
    ]
    epsilon = Fourier().epsilon([(each, 1) for each in rounds], delta=1e-5)
    assert (epsilon <= 1.0) == (share == 1.0)


def test_leaves_out_bands_whose_classes_are_too_small() -> None:
    plans = plan_correlated_noise(
        8, sampling_probability=0.4, bands=[1, 2, 4, 16], **TERMS
    )
    assert sorted(each.classes for each in plans) == [1, 2]


@pytest.mark.parametrize(
    ("strategy", "found"),
    [
        (BANDS, (4, 0.8)),
        (BandedToeplitz((1.0,) * 6), (5, 1.0)),
        (BinaryTree(), (5, 1.0)),
    ],
)
def test_takes_whole_classes_where_bands_leave_too_few(strategy, found) -> None:
    chosen = amplified(strategy, 20, 0.2, **TERMS)

    assert (chosen.classes, chosen.sampling_probability) == found
