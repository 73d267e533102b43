"""Optimized strategies, their errors, and the noise for a target."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy.optimize

from keras_dp.accountants import Fourier, strategy_sensitivity
from keras_dp.ledger import (
    BandedToeplitz,
    BufferedToeplitz,
    CorrelatedSum,
    CyclicPoissonSampling,
    FullDataset,
    InverseToeplitz,
    LowerTriangular,
    Round,
)
from keras_dp.planning import (
    calibrate_correlated_noise,
    calibrate_noise,
    optimize_strategy,
    prefix_sum_error,
)

STARTS = [
    BandedToeplitz((1.0, 0.5, 0.375, 0.3125)),
    BufferedToeplitz((0.9, 0.5), (0.2, 0.2)),
    InverseToeplitz.square_root(4),
    InverseToeplitz.subtracting(0.5),
]
# Rounds, separation, participations.
TERMS = [(40, 1, None), (40, 8, 3), (40, 40, 1)]


def terms(separation, most):
    return {"min_separation": separation, "max_participations": most}


def by_definition(strategy, rounds, separation, most):
    """Returns the error from matrices."""
    noise = np.tril(np.ones([rounds, rounds])) @ np.linalg.inv(
        strategy.matrix(rounds)
    )
    sensitivity = strategy_sensitivity(strategy, rounds, separation, most)
    return np.sqrt(np.square(noise).sum() / rounds) * sensitivity.upper


@pytest.mark.parametrize("strategy", STARTS)
@pytest.mark.parametrize("setting", TERMS)
def test_the_error_is_that_of_its_matrices(strategy, setting) -> None:
    rounds, *rest = setting

    found = prefix_sum_error(strategy, rounds, **terms(*rest))

    assert found == pytest.approx(by_definition(strategy, *setting))
    if rounds == 40:
        same = LowerTriangular.from_matrix(strategy.matrix(rounds))
        other = prefix_sum_error(same, rounds, **terms(*rest))
        assert other == pytest.approx(found, rel=0.2)


def test_independent_noise_has_its_error() -> None:
    assert prefix_sum_error(
        BandedToeplitz((1.0,)), 99, max_participations=1
    ) == pytest.approx(math.sqrt(50))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("setting", TERMS)
def test_no_step_from_the_optimum_is_better(start, setting) -> None:
    """By differences of the definition, in each number of the strategy."""
    rounds, *rest = setting
    found = optimize_strategy(start, rounds, **terms(*rest))
    best = prefix_sum_error(found, rounds, **terms(*rest))

    assert type(found) is type(start)
    assert best <= prefix_sum_error(start, rounds, **terms(*rest))
    for field in dataclasses.fields(found):
        numbers = getattr(found, field.name)
        for place, step in itertools.product(
            range(len(numbers)), (-1e-3, 1e-3)
        ):
            moved = [*numbers]
            moved[place] += step
            try:
                other = dataclasses.replace(found, **{field.name: moved})
            except ValueError:
                continue  # There is no such strategy.
            error = prefix_sum_error(other, rounds, **terms(*rest))
            # L-BFGS stops where the bound for columns that increase has a kink.
            assert error >= best * (1 - 1e-4)


def test_two_bands_are_found_by_another_search() -> None:
    found = optimize_strategy(BandedToeplitz((1, 0.1)), 30, min_separation=2)

    other = scipy.optimize.minimize_scalar(
        lambda x: by_definition(BandedToeplitz((1, x)), 30, 2, None),
        bounds=(0.0, 1.0),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert found.coefficients[1] == pytest.approx(other.x, abs=1e-4)


def test_one_band_stays() -> None:
    assert optimize_strategy(BandedToeplitz((1,)), 9) == BandedToeplitz((1,))


def test_a_matrix_is_not_optimized() -> None:
    with pytest.raises(TypeError, match="`start` must be"):
        optimize_strategy(LowerTriangular(((1.0,),)), 1)


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
    @pytest.mark.parametrize("strategy", STARTS[:2])
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
        epsilon = Fourier().epsilon(rounds, delta=1e-5)
        assert 2.0 * (1 - 1e-5) <= epsilon <= 2.0

    def test_in_every_round_is_that_of_the_full_data(self) -> None:
        noise = calibrate_correlated_noise(
            STARTS[0], 10, target_epsilon=2.0, delta=1e-5, classes=1
        )

        event = CorrelatedSum("sum", 1.0, noise, STARTS[0], 10, "one")
        epsilon = Fourier().epsilon(
            [(Round(FullDataset(), (event,)), 10)], delta=1e-5
        )
        assert 2.0 * (1 - 1e-5) <= epsilon <= 2.0
