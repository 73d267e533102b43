"""The discrete Gaussian against sums over the integers."""

import itertools

import numpy as np
import pytest

from keras_dp.accountants import RDP, Moments
from keras_dp.accountants.normalize.mechanisms import (
    DiscreteGaussian,
    Gaussian,
    SampledDiscreteGaussian,
    SampledGaussian,
)
from keras_dp.accountants.renyi.divergences import rdp
from keras_dp.ledger import (
    DiscreteGaussianSum,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
)

SCALES = [0.3, 0.7, 1.0, 2.5]
SHIFTS = [(1,), (3,), (1, 1), (2, -1)]
INTEGERS = [2.0, 3.0, 5.0, 9.0]


def log_masses(scale, shift):
    """Of the noise at all integers that matter, and of the noise moved."""
    reach = int(60 * scale) + 60
    line = np.arange(-reach, reach + 1.0)
    log_mass = -(line**2) / (2 * scale**2)
    log_mass -= np.logaddexp.reduce(log_mass)
    grid = itertools.product(*[range(line.size)] * len(shift))
    index = np.array(list(grid))

    def at(offset):
        x = line[index] - np.array(offset)
        return -np.sum(x**2, axis=1) / (2 * scale**2)

    centre = at((0,) * len(shift))
    norm = np.logaddexp.reduce(centre)
    return centre - norm, at(shift) - norm


def divergence(first, second, order) -> float:
    """Of two laws given by the logs of their masses."""
    log_moment = np.logaddexp.reduce(order * first + (1 - order) * second)
    return float(log_moment / (order - 1))


def both_directions(scale, shift, order, probability) -> tuple[float, float]:
    without, moved = log_masses(scale, shift)
    mixed = moved
    if probability < 1:
        mixed = np.logaddexp(
            np.log1p(-probability) + without, np.log(probability) + moved
        )
    return (
        divergence(mixed, without, order),
        divergence(without, mixed, order),
    )


def noise_multiplier(scale, shift) -> float:
    return scale / float(np.linalg.norm(shift))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shift", SHIFTS)
class TestUnsampled:
    @pytest.mark.parametrize("order", INTEGERS)
    def test_is_the_gaussian_at_integer_orders(
        self, scale, shift, order
    ) -> None:
        stated = rdp(
            DiscreteGaussian(noise_multiplier(scale, shift)), np.array([order])
        )[0]

        for exact in both_directions(scale, shift, order, 1.0):
            assert exact == pytest.approx(stated, rel=1e-11)

    @pytest.mark.parametrize("order", [1.01, 1.5, 2.7, 6.1])
    def test_is_never_above_the_gaussian_at_others(
        self, scale, shift, order
    ) -> None:
        stated = rdp(
            DiscreteGaussian(noise_multiplier(scale, shift)), np.array([order])
        )[0]

        for exact in both_directions(scale, shift, order, 1.0):
            assert exact <= stated * (1 + 1e-11)


def test_at_other_orders_it_is_not_the_gaussian() -> None:
    """Control: the test above is not one of equality."""
    exact = max(both_directions(0.3, (1,), 1.5, 1.0))

    assert exact < 0.9 * rdp(DiscreteGaussian(0.3), np.array([1.5]))[0]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("probability", [0.01, 0.4])
class TestSampled:
    def test_is_the_gaussian_at_integer_orders(
        self, scale, shift, probability
    ) -> None:
        """In the larger direction; the other is not above."""
        mechanism = SampledDiscreteGaussian(
            noise_multiplier(scale, shift), probability
        )

        for order, stated in zip(
            INTEGERS, rdp(mechanism, np.array(INTEGERS)), strict=True
        ):
            forward, back = both_directions(scale, shift, order, probability)
            assert forward == pytest.approx(stated, rel=1e-9)
            assert back <= stated * (1 + 1e-9)

    @pytest.mark.parametrize("order", [1.01, 1.5, 2.7, 6.1])
    def test_chords_bound_the_others(
        self, scale, shift, probability, order
    ) -> None:
        mechanism = SampledDiscreteGaussian(
            noise_multiplier(scale, shift), probability
        )
        stated = rdp(mechanism, np.array([order]))[0]

        exact = max(both_directions(scale, shift, order, probability))

        assert exact <= stated * (1 + 1e-9)

    def test_moments_are_those_of_the_definition(
        self, scale, shift, probability
    ) -> None:
        """Abadi et al.: the larger of both directions."""
        mechanism = SampledDiscreteGaussian(
            noise_multiplier(scale, shift), probability
        )

        moments = np.array([1.0, 4.0])
        stated = rdp(mechanism, moments + 1) * moments

        exact = [
            moment * max(both_directions(scale, shift, moment + 1, probability))
            for moment in (1, 4)
        ]
        np.testing.assert_allclose(stated, exact, rtol=1e-9)


def test_mixed_with_a_gaussian_sum_moments_multiply() -> None:
    """q = 0.3, one integer and one real coordinate, order 3, on a grid."""
    probability, order, stddev, bound = 0.3, 3.0, 1.3, 0.8
    step = 0.05
    x = np.arange(-15, 16, step)
    density = np.log(step) - (x**2) / (2 * stddev**2)
    density -= np.log(stddev * np.sqrt(2 * np.pi))
    moved = density + (x * bound - bound**2 / 2) / stddev**2
    first, second = log_masses(0.7, (1,))
    without = (first[:, None] + density).ravel()
    together = (second[:, None] + moved).ravel()
    mixed = np.logaddexp(
        np.log1p(-probability) + without, np.log(probability) + together
    )
    queries = (
        GaussianSum("real", bound, stddev),
        DiscreteGaussianSum("integer", 1.0, 0.7),
    )
    z = ((bound / stddev) ** 2 + (1 / 0.7) ** 2) ** -0.5

    stated = rdp(SampledDiscreteGaussian(z, probability), np.array([order]))

    assert stated[0] == pytest.approx(
        divergence(mixed, without, order), rel=1e-9
    )
    ledger = [(Round(PoissonSampling(probability), queries), 10)]
    same = [
        (
            Round(
                PoissonSampling(probability),
                (DiscreteGaussianSum("all", 1.0, z),),
            ),
            10,
        )
    ]
    assert RDP().epsilon(ledger, delta=1e-5) == pytest.approx(
        RDP().epsilon(same, delta=1e-5), rel=1e-10
    )


@pytest.mark.parametrize("order", [1.0 + 1e-6, 1.5, 2.0, 40.5, 1e5])
def test_lies_a_little_above_the_gaussian(order) -> None:
    """The chord: equal at integers, and within 2 % from order 4 on here."""
    orders = np.array([order])
    chord = rdp(SampledDiscreteGaussian(1.1, 0.01), orders)
    gaussian = rdp(SampledGaussian(1.1, 0.01), orders)

    assert chord >= gaussian * (1 - 1e-12)
    if order > 4:
        assert chord <= 1.02 * gaussian


@pytest.mark.parametrize("accountant", [RDP(), Moments()])
def test_unsampled_costs_what_the_gaussian_costs(accountant) -> None:
    discrete = Round(FullDataset(), (DiscreteGaussianSum("sum", 3.0, 12.0),))
    gaussian = Round(FullDataset(), (GaussianSum("sum", 3.0, 12.0),))

    assert accountant.epsilon(
        [(discrete, 5)], delta=1e-5
    ) == accountant.epsilon([(gaussian, 5)], delta=1e-5)
    assert rdp(Gaussian(4.0), np.array([1.5])) == rdp(
        DiscreteGaussian(4.0), np.array([1.5])
    )
