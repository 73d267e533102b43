"""Rounds with encoded sums, and all kinds together, to their price."""

import math

import numpy as np
import pytest

from keras_dp.accountants import RDP, available_accountants
from keras_dp.accountants.normalize.mechanisms import (
    AdditiveNoise,
    Encoding,
    FixedSizeGaussian,
    Gaussian,
    OneOf,
    SampledGaussian,
    SampledGaussianReplaceOne,
)
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.renyi import encoded
from keras_dp.accountants.renyi.divergences import rdp
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    CoordinateBounds,
    DisjointBatches,
    EncodedSum,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianNoise,
    PoissonSampling,
    UnverifiedSampling,
)
from keras_dp.ledger.events.noise_families import LaplaceNoise, StudentTNoise
from tests.replays import replays
from tests.unit.accountants.sums import (
    BARE,
    BOUNDS,
    GAUSSIAN,
    LAPLACE,
    OTHERS,
    RELATIONS,
    ROW,
    STUDENT,
    over,
)

MOMENTS = RDP(conversion="moments")


class TestEncoded:
    def test_gaussian_noise_is_a_gaussian_sum(self) -> None:
        """Of the longest vector: the second, 0.75."""
        query = EncodedSum("encoded", BOUNDS, GaussianNoise(3.0))
        fixed = FixedSizeWithoutReplacement(2, 8)

        assert normalize([over(PoissonSampling(0.1), query)]) == (
            (SampledGaussian(4.0, 0.1), 1),
        )
        assert normalize([over(FullDataset(), query)], "replace_one") == (
            (Gaussian(2.0), 1),
        )
        assert normalize(
            [over(PoissonSampling(0.1), query)], "replace_one"
        ) == ((SampledGaussianReplaceOne(4.0, 0.1), 1),)
        assert normalize([over(fixed, query)], "replace_one") == (
            (FixedSizeGaussian(2.0, 0.25), 1),
        )

    def test_other_noise(self) -> None:
        encoding = Encoding(BOUNDS, LaplaceNoise(2.0))
        sampled = [over(PoissonSampling(0.1), LAPLACE, count=3)]
        full = [over(FullDataset(), LAPLACE, GAUSSIAN)]

        assert normalize(sampled) == (
            (AdditiveNoise(math.inf, 0.1, (encoding,)), 3),
        )
        assert normalize(full, "zero_out") == (
            (AdditiveNoise(4.0, 1.0, (encoding,)), 1),
        )

    def test_names_and_order_do_not_matter(self) -> None:
        renamed = EncodedSum("other", OTHERS, StudentTNoise(0.5, 5.0))
        ledger = [
            over(FullDataset(), LAPLACE, STUDENT),
            over(FullDataset(), renamed, LAPLACE),
        ]

        ((mechanism, count),) = normalize(ledger)

        assert count == 2
        assert len(mechanism.encodings) == 2

    def test_vectors_of_zeros_are_free(self) -> None:
        zeros = CoordinateBounds.from_arrays([[0.0], [0.0]], [5])
        query = EncodedSum("encoded", zeros, LaplaceNoise(1.0))

        for neighbours in RELATIONS:
            assert normalize([over(FullDataset(), query)], neighbours) == ()

    @pytest.mark.full
    def test_a_law_without_an_integral_is_refused(self, monkeypatch) -> None:
        """Normal to far out: needs panels that floats do not have.

        The families need about 80 panels, and this one more than 1,000.
        """
        monkeypatch.setattr(encoded, "_MOST_PANELS", 150)
        query = EncodedSum("encoded", BOUNDS, StudentTNoise(1.0, 1e12))

        ledger = [over(FullDataset(), query)]

        for accountant in (RDP(), MOMENTS):
            assert not replays(accountant, ledger)
            with pytest.raises(UnsupportedEventError, match="smooth"):
                accountant.epsilon(ledger, delta=1e-5)
        assert available_accountants(ledger) == ()

    @pytest.mark.full
    def test_an_epoch_costs_its_dearest_batch_order_by_order(self) -> None:
        epoch = DisjointBatches("e")
        ledger = [
            over(epoch, LAPLACE, count=5),
            over(epoch, STUDENT, count=2),
            over(epoch, GAUSSIAN),
        ]
        orders = np.array([1.5, 2.0, 9.0, 77.0])

        ((mechanism, count),) = normalize(ledger, "zero_out")

        assert type(mechanism) is OneOf
        assert count == 1
        parts = [rdp(each, orders) for each in mechanism.alternatives]
        assert len(parts) == 3
        np.testing.assert_array_equal(
            rdp(mechanism, orders), np.max(parts, axis=0)
        )

    def test_equal_batches_of_an_epoch_are_one(self) -> None:
        ledger = [over(DisjointBatches("e"), LAPLACE, count=7)]
        once = [over(FullDataset(), LAPLACE)]

        assert normalize(ledger, "zero_out") == normalize(once, "zero_out")

    @pytest.mark.full
    def test_tiny_and_huge_levels_have_a_price(self) -> None:
        """From 1e-12 to 1e3 in one vector, and in noise far from 1."""
        levels = [np.geomspace(1e-12, 1e3, 200)]
        bounds = CoordinateBounds.from_arrays(levels, np.full(200, 10**5))

        for scale in (1e-3, 1.0, 1e30, 1e300):
            query = EncodedSum("encoded", bounds, StudentTNoise(scale, 5.0))
            ledger = [over(PoissonSampling(0.01), query, count=10)]
            assert 0 <= RDP().epsilon(ledger, delta=1e-5) < math.inf
            assert 0 < RDP().delta(ledger, epsilon=1.0) <= 1

    @pytest.mark.standard
    def test_shifts_out_of_all_use_have_no_bound(self) -> None:
        query = EncodedSum("encoded", BOUNDS, LaplaceNoise(1e-12))
        ledger = [over(PoissonSampling(0.01), query)]

        for accountant in (RDP(), MOMENTS):
            assert accountant.epsilon(ledger, delta=1e-5) == math.inf
            # The chance that the record is drawn at all, rounded up.
            delta = accountant.delta(ledger, epsilon=1.0)
            assert 0.01 <= delta <= 0.01 * (1 + 1e-13)


MIXED = [
    over(PoissonSampling(0.02), LAPLACE, GAUSSIAN, count=50),
    over(FullDataset(), ROW, count=6),
    over(UnverifiedSampling(), STUDENT),
    over(DisjointBatches("e"), LAPLACE, count=3),
    over(DisjointBatches("e"), STUDENT, count=3),
]


@pytest.mark.standard
class TestAccountants:
    @pytest.mark.parametrize("accountant", [RDP(), MOMENTS])
    def test_replay_all_kinds_together(self, accountant) -> None:
        epsilon = accountant.epsilon(MIXED, delta=1e-6, neighbours="zero_out")
        delta = accountant.delta(MIXED, epsilon=epsilon, neighbours="zero_out")

        assert 0 < epsilon < math.inf
        # Both searches stop within 1e-8 of their minimum.
        assert delta == pytest.approx(1e-6, rel=1e-6)

    @pytest.mark.parametrize("query", [LAPLACE, ROW])
    @pytest.mark.parametrize(
        "sampling", [FullDataset(), PoissonSampling(0.5), DisjointBatches("e")]
    )
    def test_a_bare_sum_beside_is_not_private(self, query, sampling) -> None:
        ledger = [over(sampling, query, BARE)]

        found = available_accountants(ledger, neighbours="zero_out")

        assert found
        for accountant in found:
            arguments = {"neighbours": "zero_out"}
            assert (
                accountant.epsilon(ledger, delta=1e-5, **arguments) == math.inf
            )
            assert accountant.delta(ledger, epsilon=9.0, **arguments) == 1
