"""Rényi curves against their definition, in other ways of computing it."""

import math

import mpmath as mp
import numpy as np
import pytest

from keras_dp.accountants.normalize.mechanisms import (
    Gaussian,
    SampledGaussian,
    SampledGaussianReplaceOne,
)
from keras_dp.accountants.renyi.divergences import rdp

# What the curves add on purpose, and twice the 1e-14 that they are exact to.
ROUNDED_UP = 1.5e-12


def log_moment_in_40_digits(probability, noise, excess, mean) -> float:
    """`log E[u^a v^(1-a)]` by a trapezoid sum of the plain integrand.

    Plain: `u^a v^(1-a)` less its mean, at a digit count where that does not
    matter, on a finer grid and over a wider range than the code.
    """
    with mp.workdps(60):
        q, z, b = mp.mpf(probability), mp.mpf(noise), mp.mpf(excess)

        def plain(x):
            u = 1 - q + q * mp.exp(x / z - 1 / (2 * z * z))
            v = 1 - q + q * mp.exp(mean * x / z - mean**2 / (2 * z * z))
            return u ** (1 + b) * v**-b * mp.npdf(x)

        step = min(mp.mpf("0.25"), z / 5)
        low = -(2 / z + 25)
        high = (1 + (1 - mean) * b) / z + 2 / z + 25
        points = int((high - low) / step)
        area = step * mp.fsum(plain(low + k * step) for k in range(points))
        return float(mp.log(area))


EXTREME = [
    (1e-8, 1.0, 3.5),
    (1e-8, 100.0, 40.0),
    (1e-5, 3.0, 0.001),
    (1e-4, 0.6, 6.7),
    (0.01, 4.0, 15.5),
    (0.01, 0.5, 4.25),
    (0.01, 100.0, 300.5),
    (0.3, 0.3, 1e-6),
    (0.5, 2.0, 100.25),
    (0.5, 1.0, 0.5),
    (0.45, 0.3, 1.3),
    (0.5, 0.7, 60.5),
    (0.999, 10.0, 1e-4),
    (1 - 1e-9, 20.0, 5000.0),
    (0.03, 1e4, 10.5),
]


@pytest.mark.parametrize("mean", [0, -1])
@pytest.mark.parametrize(("probability", "noise", "excess"), EXTREME)
def test_every_digit_holds(probability, noise, excess, mean) -> None:
    """Down to divergences of 1e-20, which are lost in 1 + 1e-20.

    Never below: it is a bound.
    """
    order = 1 + excess
    kind = SampledGaussianReplaceOne if mean else SampledGaussian

    got = rdp(kind(noise, probability), np.array([order]))[0] * (order - 1)

    true = log_moment_in_40_digits(probability, noise, order - 1, mean)
    assert true <= got <= true * (1 + ROUNDED_UP)


def test_the_oracle_sees_a_wrong_last_digit() -> None:
    """Control: an error of 1e-11 in q would have been seen."""
    true = log_moment_in_40_digits(0.01, 4.0, 15.5, 0)
    wrong = log_moment_in_40_digits(0.01 * (1 + 1e-11), 4.0, 15.5, 0)

    assert abs(wrong / true - 1) > ROUNDED_UP


@pytest.mark.parametrize("kind", [SampledGaussian, SampledGaussianReplaceOne])
def test_orders_join_without_a_step(kind) -> None:
    """Second differences over steps of 1e-4 stay at the smooth 1e-8.

    A jump between the formulas for small and large exponents, or at integer
    orders, would show at its full height.
    """
    orders = np.arange(1.9, 9.1, 1e-4)

    curve = rdp(kind(1.3, 0.2), orders)

    assert np.abs(np.diff(curve, 2)).max() < 1e-7 * curve.min()


@pytest.mark.parametrize("excess", [1e-9, 1e-3, 1.0, 10.0])
@pytest.mark.parametrize("noise", [3.0, 1e4])
@pytest.mark.parametrize("kind", [SampledGaussian, SampledGaussianReplaceOne])
def test_certain_sampling_is_no_sampling(kind, noise, excess) -> None:
    """As q goes to 1, the curve goes to the straight line; never above.

    To 1e-9 at 1 - q = 1e-12, as neither v nor its powers are small here.
    """
    distance = 2 if kind is SampledGaussianReplaceOne else 1
    orders = np.array([1 + excess])

    sampled = rdp(kind(noise, 1 - 1e-12), orders)[0]

    line = rdp(Gaussian(noise / distance), orders)[0]
    assert line * (1 - 1e-9) <= sampled <= line * (1 + 1e-15)


@pytest.mark.parametrize("kind", [SampledGaussian, SampledGaussianReplaceOne])
@pytest.mark.parametrize("noise", [1e-90, 1e-3, 0.002])
def test_next_to_no_noise_is_bounded_by_convexity(kind, noise) -> None:
    """A bound, where the quadrature would need too many points.

    The power of a sum of positive numbers is at least that of one of them:
    `E R^a >= q^a e^(a (a-1) / (2 z^2))`, and at least 1.
    """
    distance = 2 if kind is SampledGaussianReplaceOne else 1
    orders = np.array([1 + 1e-6, 2.0, 1e6])

    sampled = rdp(kind(noise, 0.1), orders)

    line = rdp(Gaussian(noise / distance), orders)
    least = orders / (2 * noise**2) + orders / (orders - 1) * math.log(0.1)
    assert np.all(sampled <= line * (1 + 1e-13))
    assert np.all(sampled >= np.maximum(least, 0.0) * (1 - 1e-13))
    # Not what it is without sampling, where that is far from it.
    if noise > 1e-90:
        assert sampled[0] < 0.6 * line[0]


def test_orders_with_too_many_points_are_bounded_by_convexity() -> None:
    """q near 1, z near 0, order 1e6: millions of points, where 1e5 may be."""
    orders = np.array([1e6])

    curve = rdp(SampledGaussianReplaceOne(0.1136, 0.9009), orders)

    line = rdp(Gaussian(0.1136 / 2), orders)
    assert line * (1 - 1e-6) <= curve <= line * (1 + 1e-13)


def test_unsampled_gaussian() -> None:
    """`a / (2 z^2)`: Mironov (2017), Corollary 3; up to the rounding up."""
    orders = np.array([1.5, 2.0, 1e6])

    np.testing.assert_allclose(
        rdp(Gaussian(3.0), orders), orders / 18, rtol=ROUNDED_UP
    )


@pytest.mark.parametrize("wrong", [1.0, 0.5, math.nan])
def test_orders_must_exceed_one(wrong) -> None:
    with pytest.raises(ValueError, match="`orders`"):
        rdp(Gaussian(3.0), np.array([2.0, wrong]))
