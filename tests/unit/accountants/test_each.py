"""What single accountants add to the contract."""

import math

import pytest

from keras_dp.accountants import RDP, Fourier, available_accountants
from keras_dp.ledger import (
    DisjointBatches,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
    SamplingEvent,
    UnverifiedSampling,
)

MOMENTS = RDP(conversion="moments")

ACCOUNTANTS = [RDP(), MOMENTS, Fourier()]


def counted(
    sampling: SamplingEvent, *, noise: float = 2.0, count: int = 1
) -> list[tuple[Round, int]]:
    return [(Round(sampling, (GaussianSum("sum", 1.0, noise),)), count)]


POISSON = counted(PoissonSampling(0.01), count=500)
FULL = counted(FullDataset(), noise=20.0, count=7)
FIXED = counted(FixedSizeWithoutReplacement(10, 1000), noise=4.0, count=50)


class TestAvailableAccountants:
    @pytest.mark.parametrize(
        ("ledger", "neighbours", "kinds"),
        [
            (FULL, "replace_one", [Fourier, RDP]),
            (POISSON, "zero_out", [Fourier, RDP]),
            (FIXED, "replace_one", [Fourier, RDP]),
            (FIXED, "zero_out", []),
            (counted(DisjointBatches("epoch")), "add_or_remove_one", []),
        ],
    )
    def test_lists_those_that_can_replay(
        self, ledger, neighbours, kinds
    ) -> None:
        found = available_accountants(ledger, neighbours=neighbours)

        assert [type(accountant) for accountant in found] == kinds
        epsilons = [
            each.epsilon(ledger, delta=1e-5, neighbours=neighbours)
            for each in found
        ]
        assert epsilons == sorted(epsilons)

    def test_an_iterator_is_read_once(self) -> None:
        assert len(available_accountants(iter(FULL))) == 2

    def test_bad_arguments_raise(self) -> None:
        with pytest.raises(ValueError, match="`neighbours`"):
            available_accountants(FULL, neighbours="other")
        with pytest.raises(TypeError, match="`ledger`"):
            available_accountants(3)


class TestRDP:
    def test_is_zero_once_the_distributions_overlap(self) -> None:
        """Total variation below delta: `(0, delta)` holds."""
        ledger = counted(PoissonSampling(1e-6), noise=100.0)

        assert RDP().epsilon(ledger, delta=1e-5) == 0
        assert RDP().delta(ledger, epsilon=0.0) < 1e-7

    def test_never_above_moments(self) -> None:
        for delta in (0.1, 1e-5, 1e-50):
            assert RDP().epsilon(POISSON, delta=delta) < RDP(
                conversion="moments"
            ).epsilon(POISSON, delta=delta)

    @pytest.mark.parametrize(
        ("probability", "noise", "count", "delta"),
        [
            (1e-8, 0.1, 1, 1e-5),
            (1e-8, 1e4, 10**6, 1e-300),
            (1e-300, 1e90, 1, 1e-300),
            (0.999, 1e4, 10, 1e-12),
            (1 - 1e-16, 1.0, 10, 1e-12),
            (0.5, 0.1, 2**62, 1e-5),
            (0.01, 1e-90, 2**62, 1e-5),
            (1e-3, 1e5, 10**12, 0.999),
        ],
    )
    @pytest.mark.parametrize("neighbours", ["zero_out", "replace_one"])
    def test_extreme_rounds_have_a_finite_price(
        self, probability, noise, count, delta, neighbours
    ) -> None:
        """Below that of the same rounds without sampling, without a warning.

        By 1e-6: up to there the values are rounded up.
        """
        ledger = counted(PoissonSampling(probability), noise=noise, count=count)
        full = counted(FullDataset(), noise=noise, count=count)

        arguments = {"delta": delta, "neighbours": neighbours}
        epsilon = RDP().epsilon(ledger, **arguments)

        assert 0 <= epsilon < math.inf
        assert epsilon <= RDP().epsilon(full, **arguments) * (1 + 1e-6)


def test_unverified_batches_cost_what_the_full_data_costs() -> None:
    unverified = counted(UnverifiedSampling(), noise=20.0, count=7)

    for accountant in ACCOUNTANTS:
        for neighbours in ("replace_one", "zero_out"):
            arguments = {"delta": 1e-5, "neighbours": neighbours}
            assert accountant.epsilon(
                unverified, **arguments
            ) == accountant.epsilon(FULL, **arguments)
