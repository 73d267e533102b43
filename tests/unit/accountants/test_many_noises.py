"""Rounds that differ in their noise, against rounds that do not."""

import numpy as np
import pytest

from keras_dp.accountants import Fourier
from keras_dp.ledger import GaussianSum, PoissonSampling, Round


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
    @pytest.mark.standard
    def test_delta(self) -> None:
        found = Fourier().delta_bounds(
            self.sampled(self.NOISES), epsilon=0.01, relative_width=1e-2
        )
        least = Fourier().delta_bounds(
            self.sampled(np.full(80, self.NOISES.max())),
            epsilon=0.01,
            relative_width=1e-2,
        )

        assert 3e-8 < least.lower <= found.upper

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("spread", "delta"), [(1e-7, 1e-10), (2e-2, 1e-10), (2e-2, 1e-6)]
    )
    def test_epsilon(self, spread, delta) -> None:
        noises = 1 + spread * np.linspace(0, 1, 80)

        found = Fourier().epsilon_bounds(
            self.sampled(noises), delta=delta, relative_width=1e-3
        )
        least = Fourier().epsilon_bounds(
            self.sampled(np.full(80, noises.max())),
            delta=delta,
            relative_width=1e-3,
        )

        assert 0 < least.lower <= found.upper
