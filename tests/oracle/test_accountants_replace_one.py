"""Poisson sampling, a record replaced: which pair of outputs is the worst."""

import math

import numpy as np
import pytest

from keras_dp.accountants.normalize.mechanisms import SampledGaussianReplaceOne
from keras_dp.accountants.renyi.divergences import rdp

NOISE = 1.5
STEP = 0.2


def excess(first, second, order, probability) -> float:
    """`E[u^a v^(1-a)] - 1` for means in the plane, by a sum over a grid.

    Exact to 1e-12 for these Gaussians; less a tangent with the same mean.
    """
    line = np.arange(-14, 14 + 2 * order**0.5 + order, STEP)
    x, y = np.meshgrid(line, np.arange(-14, 14, STEP))
    log_weight = -(x**2 + y**2) / 2 + np.log(STEP**2 / (2 * np.pi))

    def log_ratio(mean):
        growth = (mean[0] * x + mean[1] * y) / NOISE
        growth = growth - np.dot(mean, mean) / (2 * NOISE**2)
        return np.log1p(probability * np.expm1(growth))

    u, v = log_ratio(first), log_ratio(second)
    plain = np.exp(log_weight + order * u + (1 - order) * v)
    tangent = order * np.exp(u) - (order - 1) * np.exp(v)
    return float(np.sum(plain - np.exp(log_weight) * tangent))


@pytest.mark.parametrize("probability", [1e-6, 0.01, 0.3])
@pytest.mark.parametrize("order", [1.05, 2.0, 30.0])
class TestWorstPair:
    def test_opposite_means_are_the_worst(self, probability, order) -> None:
        """The proof in `mechanisms`: 1, -1 beat all others in a unit ball."""
        worst = excess((1.0, 0.0), (-1.0, 0.0), order, probability)
        rng = np.random.default_rng(20261121)

        for _ in range(20):
            lengths = np.sqrt(rng.random(2))
            angles = rng.uniform(-math.pi / 2, math.pi / 2, 2)
            first, second = (
                length * np.array([sign * math.cos(angle), math.sin(angle)])
                for length, angle, sign in zip(
                    lengths, angles, (1, -1), strict=True
                )
            )
            assert excess(first, second, order, probability) < worst

    def test_the_curve_is_that_of_the_worst(self, probability, order) -> None:
        """1 cancels in the sum: an error of 1e-16 in 1e-13 at the least."""
        mechanism = SampledGaussianReplaceOne(NOISE, probability)

        curve = rdp(mechanism, np.array([order]))

        worst = excess((1.0, 0.0), (-1.0, 0.0), order, probability)
        tolerance = 1e-9 if probability > 1e-3 else 1e-2
        assert math.expm1(curve[0] * (order - 1)) == pytest.approx(
            worst, rel=tolerance
        )
