"""Rounds of many kinds: few stand for them, from both sides."""

import numpy as np
import pytest

from keras_dp.accountants import RDP, Fourier
from keras_dp.accountants.normalize import few_kinds as module
from keras_dp.accountants.normalize.few_kinds import few_kinds
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Exposure,
    FixedSizeGaussian,
    Gaussian,
    OneOf,
    SampledGaussian,
    SampledGaussianGroup,
    SampledGaussianReplaceOne,
)
from keras_dp.ledger import GaussianSum, PoissonSampling, Round

KINDS = {
    "sampled": SampledGaussian,
    "replaced": SampledGaussianReplaceOne,
    "fixed size": FixedSizeGaussian,
    "group": lambda z, q: SampledGaussianGroup(z, q, 2),
    "not sampled": lambda z, q: Gaussian(z),
}
PROBABILITIES = (1e-3, 2e-3, 3e-3)


def rounds_of(kind, size, spread=2.0):
    """Returns rounds of many noises and three probabilities, in no order."""
    noises = np.random.default_rng(28).permutation(
        np.geomspace(2.0, 2.0 * spread, size)
    )
    return tuple(
        CountedMechanism(
            KINDS[kind](z, PROBABILITIES[index % 3]), 1 + index % 2
        )
        for index, z in enumerate(noises.tolist())
    )


def numbers(rounds):
    """Returns noise and probability of each single round, by noise."""
    return np.array(
        sorted(
            (m.noise_multiplier, m.sampling_probability)
            for m, count in rounds
            for _ in range(count)
        )
    ).T


class TestFewKinds:
    def test_of_few_are_the_same(self) -> None:
        rounds = rounds_of("sampled", 50)

        found = few_kinds(rounds, 50)

        assert found.upper is rounds
        assert found.lower is rounds

    @pytest.mark.parametrize("most", [3, 10, 49])
    @pytest.mark.parametrize("kind", sorted(set(KINDS) - {"not sampled"}))
    def test_have_less_noise_above_and_more_below(self, kind, most) -> None:
        rounds = rounds_of(kind, 50)

        upper, lower = (numbers(each) for each in few_kinds(rounds, most))

        exact = numbers(rounds)
        assert exact.shape == upper.shape == lower.shape
        assert np.all(upper[0] <= exact[0])
        assert np.all(exact[0] <= lower[0])
        high, middle, low = (np.sort(each[1]) for each in (upper, exact, lower))
        assert np.all(low <= middle)
        assert np.all(middle <= high)
        assert not np.array_equal(upper, lower)

    @pytest.mark.parametrize("most", [3, 10, 49])
    def test_are_as_many_as_asked_for(self, most) -> None:
        upper, lower = few_kinds(rounds_of("sampled", 50), most)

        assert 2 <= len(upper) <= most
        assert 2 <= len(lower) <= most

    def test_without_sampling_are_one(self) -> None:
        found = few_kinds(rounds_of("not sampled", 50), 10)

        exact = sum(
            n / m.noise_multiplier**2 for m, n in rounds_of("not sampled", 50)
        )
        ((upper, _),), ((lower, _),) = found
        assert upper.noise_multiplier < exact**-0.5 < lower.noise_multiplier
        assert upper.noise_multiplier == pytest.approx(
            lower.noise_multiplier, rel=1e-14
        )

    def test_that_take_long_are_fewer(self) -> None:
        upper, lower = few_kinds(rounds_of("fixed size", 150))

        assert len(upper) == len(lower) == 100

    def test_keep_what_has_no_noise_of_its_own(self) -> None:
        either = OneOf((Gaussian(1.0), Gaussian(2.0)))
        exposure = Exposure((), 0.1)
        more = (CountedMechanism(either, 3), CountedMechanism(exposure, 2))

        for found in few_kinds((*rounds_of("sampled", 50), *more), 5):
            counts = dict(found)
            assert counts[either] == 3
            assert counts[exposure] == 2


@pytest.mark.parametrize("accountant", [RDP(), RDP(conversion="moments")])
@pytest.mark.standard
def test_accountants_are_just_above_all_kinds(accountant, monkeypatch) -> None:
    rounds = rounds_of("sampled", 600)

    together = accountant.epsilon_of(rounds, 1e-6)
    monkeypatch.setattr(module.few_kinds, "__defaults__", (600,))
    alone = accountant.epsilon_of(rounds, 1e-6)

    assert alone < together < 1.01 * alone


@pytest.mark.full
def test_bounds_of_many_kinds_are_two_percent_apart() -> None:
    """10,000 noises from 0.5 to 11, three probabilities."""
    rounds = [
        (
            Round(
                PoissonSampling(PROBABILITIES[index % 3]),
                (GaussianSum("sum", 1.0, z),),
            ),
            10,
        )
        for index, z in enumerate(np.geomspace(0.5, 11, 10_000).tolist())
    ]

    lower, upper = Fourier().epsilon_bounds(rounds, delta=1e-6)

    assert 0.98 * upper < lower < upper
    assert upper < RDP().epsilon(rounds, delta=1e-6)


class TestNoisesThatAreNearlyEqual:
    """A list of noises costs no less than as many of its largest noise."""

    NOISES = 1 + 1e-7 * np.arange(80)

    def sampled(self, noises):
        return [
            (
                Round(PoissonSampling(1e-4), (GaussianSum("sum", 1.0, z),)),
                1,
            )
            for z in noises.tolist()
        ]

    @pytest.mark.full
    def test_delta(self) -> None:
        found = Fourier(1e-2).delta_bounds(
            self.sampled(self.NOISES), epsilon=0.01
        )
        least = Fourier(1e-2).delta_bounds(
            self.sampled(np.full(80, self.NOISES.max())), epsilon=0.01
        )

        assert 3e-8 < least.lower <= found.upper

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("spread", "delta"), [(1e-7, 1e-10), (2e-2, 1e-10), (2e-2, 1e-6)]
    )
    def test_epsilon(self, spread, delta) -> None:
        noises = 1 + spread * np.linspace(0, 1, 80)

        found = Fourier(1e-3).epsilon_bounds(self.sampled(noises), delta=delta)
        least = Fourier(1e-3).epsilon_bounds(
            self.sampled(np.full(80, noises.max())), delta=delta
        )

        assert 0 < least.lower <= found.upper
