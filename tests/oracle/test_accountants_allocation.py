"""Random allocation against the definition, and against what is known.

The likelihood ratio of an epoch of two or three batches is integrated over all
its coordinates.
"""

import functools
import math

import numpy as np
import pytest
from scipy import special, stats

from keras_dp.accountants import Fourier
from keras_dp.accountants.compose.grid import allocation, tilted
from keras_dp.accountants.compose.grid.likelihood import (
    drawn_log_normal,
    drawn_sum,
    spread_log_normal,
    spread_sum,
)
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Gaussian,
    RandomAllocationGaussian,
    SampledGaussian,
)
from keras_dp.ledger import (
    DisjointBatches,
    GaussianSum,
    PoissonSampling,
    RandomAllocation,
    Round,
)

EPSILONS = (0.0, 0.3, 1.0, 2.0)
ADD = "add_or_remove_one"


def epochs(count, batches, stddev):
    query = (GaussianSum("sum", 1.0, stddev),)
    return [
        (Round(RandomAllocation(f"{number}", batches), query), batches)
        for number in range(count)
    ]


@functools.cache
def ratios(batches, stddev):
    """Likelihood ratios of an epoch and their masses, by Hermite's rule.

    The integrand has a kink: the rule is a midpoint rule in the quantiles of
    one coordinate where it is exact to a few digits only.
    """
    count = 1500 if batches == 2 else 220
    ends = np.linspace(-8.5, 8.5, count + 1)
    u = (ends[:-1] + ends[1:]) / 2
    w = np.exp(u / stddev - 1 / (2 * stddev**2))
    masses = np.diff(special.ndtr(ends))
    total, joint = w, masses
    for _ in range(batches - 1):
        total = np.add.outer(total, w).ravel()
        joint = np.multiply.outer(joint, masses).ravel()
    return total / batches, joint


def true_delta(batches, stddev, epsilon):
    ratio, masses = ratios(batches, stddev)
    e = math.exp(epsilon)
    return max(
        float((masses * np.maximum(ratio - e, 0)).sum()),
        float((masses * np.maximum(1 - e * ratio, 0)).sum()),
    )


@pytest.mark.parametrize("stddev", [0.6, 1.0, 3.0])
@pytest.mark.parametrize("batches", [2, 3])
def test_one_epoch_is_what_the_definition_says(batches, stddev) -> None:
    # Squares of the quadrature's cells.
    error = 1e-4 if batches == 2 else 4e-3

    for epsilon in EPSILONS:
        true = true_delta(batches, stddev, epsilon)
        lower, upper = Fourier().delta_bounds(
            epochs(1, batches, stddev), epsilon=epsilon, neighbours=ADD
        )
        assert lower <= true * (1 + error) + 1e-12  # Where it is cut off.
        assert upper >= true * (1 - error) - 1e-12
        assert upper <= lower * 1.02 + 1e-12


def test_the_definition_tells_poisson_samples_from_it() -> None:
    """Control: a wrong mechanism would have been seen."""
    poisson = Round(PoissonSampling(0.5), (GaussianSum("sum", 1.0, 1.0),))

    other = Fourier().delta([(poisson, 2)], epsilon=1.0, neighbours=ADD)

    assert abs(other / true_delta(2, 1.0, 1.0) - 1) > 0.05


@pytest.mark.parametrize(
    ("count", "batches", "stddev"),
    [(1, 50, 0.5), (10, 100, 0.7), (3, 17, 1.5), (100, 40, 4.0)],
)
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_bounds_are_a_percent_apart(count, batches, stddev, delta) -> None:
    lower, upper = Fourier().epsilon_bounds(
        epochs(count, batches, stddev), delta=delta, neighbours=ADD
    )

    assert lower <= upper <= 1.01 * lower


@pytest.mark.parametrize(
    ("mechanism", "count"),
    [
        (Gaussian(2.0), 3),
        (SampledGaussian(0.8, 0.05), 200),
        (SampledGaussian(2.0, 0.3), 10),
    ],
)
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-10])
def test_composition_holds_what_the_line_integral_finds(
    mechanism, count, delta
) -> None:
    """Rounds beside epochs are composed with them: alone they are known."""
    rounds = (CountedMechanism(mechanism, count),)
    true = Fourier().epsilon_of(rounds, delta)

    upper = allocation.upper_epsilon(rounds, delta)
    lower = allocation.lower_epsilon(rounds, delta, upper)

    assert 0.99 * true <= lower <= true <= upper <= 1.01 * true


def test_rounds_of_other_kinds_add_up_with_epochs() -> None:
    others = [
        CountedMechanism(Gaussian(5.0), 1),
        CountedMechanism(SampledGaussian(1.0, 0.01), 100),
    ]
    epoch = CountedMechanism(RandomAllocationGaussian(0.7, 100), 10)
    delta = 1e-6

    both = allocation.upper_epsilon((epoch, *others), delta)

    assert allocation.upper_epsilon((epoch,), delta) < both
    assert both < allocation.upper_epsilon(
        (epoch,), delta / 2
    ) + Fourier().epsilon_of(tuple(others), delta / 2)


def test_it_costs_less_than_poisson_samples_and_shuffling() -> None:
    batches, count, stddev = 100, 10, 0.7
    query = (GaussianSum("sum", 1.0, stddev),)
    poisson = [(Round(PoissonSampling(1 / batches), query), batches * count)]
    shuffled = [
        (Round(DisjointBatches(f"{number}"), query), batches)
        for number in range(count)
    ]

    found = Fourier().epsilon(epochs(count, batches, stddev), delta=1e-6)

    assert found < Fourier().epsilon(poisson, delta=1e-6, neighbours=ADD)
    assert found < 0.5 * Fourier().epsilon(
        shuffled, delta=1e-6, neighbours="zero_out"
    )


class TestRatios:
    def test_spreading_moves_no_mean(self) -> None:
        one = spread_log_normal(1.2, 0.01)
        for each in (one, spread_sum(one, spread_sum(one, one))):
            mean = float((each.masses * np.exp(each.logs)).sum())
            assert each.masses.sum() + each.zero == pytest.approx(1, abs=1e-12)
            expected = 1 if each is one else 3
            assert mean + each.infinite == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("level", [0.1, 0.5, 1.0, 2.0, 8.0])
    def test_convex_means_are_between(self, level) -> None:
        """A log-normal ratio, for which the mean is known."""
        stddev = 1.2
        d = (math.log(level) + stddev**2 / 2) / stddev
        true = stats.norm.sf(d - stddev) - level * stats.norm.sf(d)
        spread = spread_log_normal(stddev, 0.05)
        drawn = drawn_log_normal(stddev, 0.05)

        upper = spread.masses @ np.maximum(np.exp(spread.logs) - level, 0)
        lower = drawn.masses @ np.maximum(drawn.points - level, 0)

        assert lower <= true <= upper + spread.infinite
        assert upper - lower < 2e-3 * true

    def test_drawing_together_moves_no_mean(self) -> None:
        one = drawn_log_normal(0.8, 0.02)
        two = drawn_sum(one, one, 0.02)

        assert two.masses.sum() == pytest.approx(1, abs=1e-12)
        assert two.masses @ two.points == pytest.approx(2, rel=1e-12)


class TestTiltedSums:
    @pytest.mark.parametrize("epsilon", [0.0, 3.0, 9.0])
    def test_of_coins_are_binomial(self, epsilon) -> None:
        rounds, chance, step = 40, 0.3, 0.25
        part = tilted.Losses(-1, np.array([1 - chance, 0.0, chance]), 0, rounds)
        heads = np.arange(rounds + 1)
        losses = step * (2 * heads - rounds)
        true = stats.binom.pmf(heads, rounds, chance) @ np.maximum(
            -np.expm1(epsilon - losses), 0
        )

        found = tilted.composed([part], step, epsilon=epsilon)

        upper = found.delta(epsilon, is_upper=True)
        lower = found.delta(epsilon, is_upper=False)
        assert lower <= true <= upper
        assert upper - lower < 1e-6 * true

    def test_what_rounding_lost_of_masses_is_added(self) -> None:
        whole = np.array([0.7, 0.0, 0.3])
        true = tilted.composed(
            [tilted.Losses(-1, whole, 0, 1000)], 0.25, epsilon=2.0
        )

        found = tilted.composed(
            [tilted.Losses(-1, whole * (1 - 2e-9), 0, 1000)], 0.25, epsilon=2.0
        )

        least = true.delta(2.0, is_upper=False)
        assert found.delta(2.0, is_upper=True) >= least
        assert found.delta(2.0, is_upper=False) <= least

    def test_infinite_losses_are_added(self) -> None:
        part = tilted.Losses(0, np.array([0.99]), 0.01, 3)

        found = tilted.composed([part], 0.1, epsilon=1.0)

        assert 0.0297 < found.delta(1.0, is_upper=True) < 0.0301
