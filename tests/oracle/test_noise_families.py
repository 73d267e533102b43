"""Noise families against their definitions, quadrature and SciPy."""

import dataclasses
import functools
import math
import sys

import mpmath as mp
import numpy as np
import pytest

from keras_dp.ledger.events.noise_families import (
    StudentTNoise,
)
from tests.noise_table import STANDARD, log_density, name_of

each_noise = pytest.mark.parametrize("noise", STANDARD, ids=name_of)
EPS = 2.0**-52
LARGEST = sys.float_info.max
DIGITS = 30  # Of mpmath.

# |x| from where densities are flat to where nothing but logs can hold them.
POINTS = [0.0, 1e-300, 1e-8, 0.1, 0.9, 1.0, 1.1, 3.0, 27.0, 800.0, 1e8]
POINTS += [1e30, 1e160, 1e300]
PROBABILITIES = [1e-300, 1e-100, 1e-20, 1e-9, 1e-3, 0.1, 0.25, 0.4999, 0.5]
# From where on to integrate tails, which can fall as steeply as exp(-x^2).
STEPS = [0, 0.01, 0.05, 0.2, 1, 3, 10, 40, 200]


@functools.cache
def integral(noise, power, of=""):
    """Returns the integral over x > 0 of `x^power`, or of the score, squared.

    By tanh-sinh quadrature of the textbook density, in the log of x.
    """
    with mp.workdps(DIGITS):

        def function(u):
            x = mp.exp(u)
            density = mp.exp(log_density(noise, x)) * x
            if of == "score":
                h = x * mp.mpf(10) ** -8  # Good to h^2.
                slope = log_density(noise, x + h) - log_density(noise, x - h)
                return density * (slope / (2 * h)) ** 2
            return density * x**power

        return mp.quad(function, [-60, -20, -5, -2, 0, 1, 2, 4, 8, 30, 150])


class TestDensity:
    @pytest.mark.parametrize("scale", [1e-200, 0.25, 1.0, 1e200])
    @each_noise
    def test_is_that_of_textbooks(self, noise, scale):
        """To the rounding of `x / scale`, which the tails multiply."""
        noise = dataclasses.replace(noise, scale=scale)
        for x in POINTS:
            if scale < 1 and x > LARGEST * scale:
                assert noise.log_density(x) == -math.inf
                continue
            with mp.workdps(60):
                exact = log_density(noise, x)
            for sign in (1, -1):
                got = float(noise.log_density(sign * x))
                if exact < -1.7e308:
                    assert got == -math.inf
                    continue
                exact = float(exact)
                constant = abs(math.log(scale)) + 1 + abs(exact)
                # Sums of up to a hundred terms, of which all are positive.
                assert abs(got - exact) <= 16 * EPS * constant


class TestMoments:
    @each_noise
    def test_variance(self, noise):
        if math.isinf(noise.variance):
            assert noise == StudentTNoise(1.0, 1.0)
            return
        # At df = 2.1 the tail beyond exp(150) is 1e-7 of the variance.
        expected = 2 * integral(noise, 2)
        assert noise.variance == pytest.approx(float(expected), rel=1e-6)

    @pytest.mark.full
    @each_noise
    def test_fisher_information(self, noise):
        """To the difference quotient of the quadrature."""
        expected = float(2 * integral(noise, 0, "score"))
        assert noise.fisher_information == pytest.approx(expected, rel=1e-11)


class TestDistribution:
    @pytest.mark.full
    @pytest.mark.parametrize("x", [0.05, 0.7, 2.5, 25.0])
    @each_noise
    def test_is_the_integral_of_the_density(self, noise, x):
        with mp.workdps(DIGITS):
            # Over the density at x, for mpmath's tolerance is absolute.
            log_x, unit = mp.log(x), log_density(noise, x)
            tail = mp.exp(unit) * mp.quad(
                lambda u: mp.exp(log_density(noise, mp.exp(u)) - unit + u),
                [log_x + step for step in STEPS],
            )
        low, high = noise.cdf([-x, x])

        assert low == pytest.approx(float(tail), rel=1e-10, abs=0)
        assert high == pytest.approx(float(1 - tail), rel=2 * EPS)

    @each_noise
    def test_quantile_is_its_inverse_far_into_the_tail(self, noise):
        for p in PROBABILITIES:
            x = float(noise.quantile(p))
            if p == 0.5:
                assert x == 0
                continue
            # Rounding of x moves cdf by eps |x| f(x): the slope of its log.
            slope = math.exp(noise.log_density(x)) * abs(x) / p
            allowed = 16 * EPS * (1 + slope)
            assert noise.cdf(x) == pytest.approx(p, rel=allowed, abs=0)

    @each_noise
    def test_quantile_has_the_symmetry_of_the_law(self, noise):
        p = 2.0 ** -np.arange(1, 50)

        np.testing.assert_allclose(
            noise.quantile(1 - p), -noise.quantile(p), rtol=4 * EPS
        )
        np.testing.assert_array_equal(
            noise.quantile([0, 1]), [-math.inf, math.inf]
        )
