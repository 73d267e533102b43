"""Many kinds of rounds: against every round by itself, which is never above."""

import numpy as np
import pytest

from keras_dp.accountants import RDP, Fourier, Moments, StrongComposition
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    FixedSizeGaussian,
    SampledDiscreteGaussian,
    SampledGaussian,
    SampledGaussianGroup,
    SampledGaussianReplaceOne,
)
from keras_dp.accountants.renyi import many_kinds, mixtures
from keras_dp.accountants.renyi.divergences import (
    composed_log_moment,
    rdp,
)

KINDS = 700
# Orders from next to 1 to far beyond those that are best for any noise here.
EXCESS = np.array([1e-3, 0.3, 1.0, 2.5, 8.0, 31.0, 200.0])
USED = EXCESS < 3
_RANDOM = np.random.default_rng(7)
NOISES = {
    "close": np.linspace(4.0, 4.007, KINDS),
    "far apart": np.geomspace(0.7, 30.0, KINDS),
}
PROBABILITIES = {
    "one": np.full(KINDS, 1e-3),
    "rising": np.geomspace(1e-3, 5e-3, KINDS),
    "scattered": _RANDOM.uniform(1e-3, 5e-3, KINDS),
}


def rounds_of(kind, noises, probabilities):
    return tuple(
        CountedMechanism(kind(z, q), 100 + index % 3)
        for index, (z, q) in enumerate(
            zip(noises.tolist(), probabilities.tolist(), strict=True)
        )
    )


def one_by_one(rounds, excess):
    return sum(
        count * rdp(mechanism, 1 + excess) * excess
        for mechanism, count in rounds
    )


class TestMomentsOfMany:
    @pytest.mark.parametrize("noises", NOISES)
    @pytest.mark.parametrize("probabilities", PROBABILITIES)
    def test_are_just_above_the_sum(self, noises, probabilities) -> None:
        rounds = rounds_of(
            SampledGaussian, NOISES[noises], PROBABILITIES[probabilities]
        )

        together = composed_log_moment(rounds, EXCESS)
        alone = one_by_one(rounds, EXCESS)

        assert np.all(together >= alone * (1 - 1e-12))
        most = 3e-3 if probabilities == "scattered" else 2e-4
        assert np.all(together[USED] <= alone[USED] * (1 + most))

    @pytest.mark.parametrize("is_close", [True, False])
    def test_of_one_probability_lose_next_to_nothing(self, is_close) -> None:
        noises = NOISES["close" if is_close else "far apart"]
        rounds = rounds_of(SampledGaussian, noises, PROBABILITIES["one"])

        together = composed_log_moment(rounds, EXCESS[USED])
        alone = one_by_one(rounds, EXCESS[USED])

        most = 1e-9 if is_close else 1e-4
        assert np.all(together <= alone * (1 + most))

    @pytest.mark.parametrize(
        "kind",
        [SampledDiscreteGaussian, SampledGaussianReplaceOne, FixedSizeGaussian],
    )
    def test_of_other_kinds_are_bounds_too(self, kind) -> None:
        rounds = rounds_of(kind, NOISES["close"], PROBABILITIES["one"])
        excess = np.array([1.0, 2.5, 8.0])

        together = composed_log_moment(rounds, excess)
        alone = one_by_one(rounds, excess)

        assert np.all(together >= alone * (1 - 1e-12))
        assert np.all(together <= alone * (1 + 1e-4))

    def test_few_are_the_sum(self) -> None:
        rounds = rounds_of(
            SampledGaussian, NOISES["far apart"], PROBABILITIES["one"]
        )[::7]

        together = composed_log_moment(rounds, EXCESS)

        np.testing.assert_allclose(
            together, one_by_one(rounds, EXCESS), rtol=1e-11
        )

    @pytest.mark.parametrize("probabilities", PROBABILITIES)
    def test_take_a_few_hundred_quadratures(
        self, monkeypatch, probabilities
    ) -> None:
        taken = []

        def counted(loss, excess):
            taken.append(loss)
            return excess

        monkeypatch.setattr(mixtures, "log_moment", counted)
        many = 20 * KINDS
        rounds = rounds_of(
            SampledGaussian,
            np.geomspace(0.7, 30.0, many),
            np.resize(PROBABILITIES[probabilities], many),
        )

        composed_log_moment(rounds, EXCESS)

        assert len(taken) <= many_kinds._MOST_CORNERS


class TestAccountants:
    """Each is just above what it says of every kind by itself."""

    @pytest.mark.parametrize("accountant", [RDP(), Moments()])
    @pytest.mark.parametrize("probabilities", PROBABILITIES)
    def test_by_moments(self, monkeypatch, accountant, probabilities) -> None:
        rounds = rounds_of(
            SampledGaussian,
            NOISES["far apart"],
            PROBABILITIES[probabilities],
        )

        together = accountant.epsilon_of(rounds, 1e-6)
        monkeypatch.setattr(many_kinds, "_FEW", KINDS)
        alone = accountant.epsilon_of(rounds, 1e-6)

        most = {"one": 3e-4, "rising": 1e-3, "scattered": 1e-2}[probabilities]
        assert alone * (1 - 1e-12) <= together <= alone * (1 + most)

    @pytest.mark.parametrize("probabilities", PROBABILITIES)
    def test_strong_composition(self, monkeypatch, probabilities) -> None:
        rounds = rounds_of(
            SampledGaussian, NOISES["close"], PROBABILITIES[probabilities]
        )
        name = "keras_dp.accountants.strong_composition._FEW"

        alone = StrongComposition().epsilon_of(rounds, 1e-6)
        monkeypatch.setattr(name, KINDS // 3)
        together = StrongComposition().epsilon_of(rounds, 1e-6)

        assert alone * (1 - 1e-12) <= together <= alone * (1 + 1e-6)

    def test_fourier_takes_moments_of_many_probabilities(self) -> None:
        many = 5000
        rounds = rounds_of(
            SampledGaussian,
            np.linspace(4, 5, many),
            np.geomspace(1e-3, 2e-3, many),
        )

        assert Fourier().epsilon_of(rounds, 1e-6) == RDP().epsilon_of(
            rounds, 1e-6
        )

    @pytest.mark.parametrize(
        "kind",
        [
            SampledGaussianReplaceOne,
            lambda z, q: SampledGaussianGroup(z, q, 2),
        ],
    )
    def test_fourier_rounds_many_probabilities(self, kind) -> None:
        many = 300
        noises = np.linspace(4.0, 4.04, many)
        rounds = rounds_of(kind, noises, np.geomspace(1e-3, 1.1e-3, many))
        most = rounds_of(kind, np.full(many, 4.0), np.full(many, 1.1e-3))
        least = rounds_of(kind, np.full(many, 4.04), np.full(many, 1e-3))

        found = Fourier().epsilon_of(rounds, 1e-6)

        assert Fourier().epsilon_of(least, 1e-6) < found
        assert found < Fourier().epsilon_of(most, 1e-6)
