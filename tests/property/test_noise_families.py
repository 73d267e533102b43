"""Laws that every noise family obeys, at any float."""

import dataclasses
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.noise_table import STANDARD, log_density

EPS = 2.0**-52
law = settings(max_examples=300)

NOISES = st.sampled_from(STANDARD)
SIZES = st.floats(0, 1e300)
SCALES = st.floats(1e-30, 1e30)


@pytest.mark.full
@law
@given(NOISES, SCALES, SIZES)
def test_the_density_is_symmetric(noise, scale, x):
    """`f(-x) = f(x)`, bit by bit, and `F(-x) = 1 - F(x)`."""
    noise = dataclasses.replace(noise, scale=scale)

    assert noise.log_density(-x) == noise.log_density(x)
    assert abs(noise.cdf(-x) + noise.cdf(x) - 1) <= 2 * EPS


@law
@given(NOISES, SCALES, SIZES, SIZES)
def test_the_density_does_not_rise_away_from_0(noise, scale, one, other):
    """`|x| <= |y|` gives `f(x) >= f(y)`, up to rounding."""
    noise = dataclasses.replace(noise, scale=scale)
    near, far = noise.log_density(sorted([one, other]))

    if near == -math.inf:
        assert far == near
        return
    assert far <= near + 16 * EPS * (1 + abs(near) + abs(math.log(scale)))


@law
@given(NOISES, st.floats(1e-6, 1e6))
def test_the_density_of_textbooks_falls_at_every_point(noise, x):
    """Its logarithmic derivative is negative for every `x > 0`."""
    with mp.workdps(60):
        h = mp.mpf(x) * mp.mpf(10) ** -15
        ahead = log_density(noise, mp.mpf(x) + h)
        slope = (ahead - log_density(noise, mp.mpf(x) - h)) / (2 * h)

    assert slope < 0


@law
@given(NOISES, SCALES, st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
def test_the_distribution_rises(noise, scale, one, other):
    """`x <= y` gives `F(x) <= F(y)`, in [0, 1], up to rounding."""
    noise = dataclasses.replace(noise, scale=scale)
    low, high = noise.cdf(sorted([one, other]))

    assert 0 <= low <= high + 2 * EPS
    assert high <= 1


@law
@given(NOISES, SCALES, st.floats(1e-200, 0.5))
def test_quantiles_scale(noise, scale, p):
    """A law stretched by s has its quantiles stretched by s."""
    stretched = dataclasses.replace(noise, scale=scale)

    np.testing.assert_allclose(
        stretched.quantile(p), scale * noise.quantile(p), rtol=4 * EPS
    )


@law
@given(NOISES, SCALES, st.floats(-1e30, 1e30))
def test_densities_scale(noise, scale, z):
    """A law stretched by s has the density `f(x / s) / s`."""
    stretched = dataclasses.replace(noise, scale=scale)
    x = z * scale
    expected = noise.log_density(x / scale) - math.log(scale)

    rounding = 16 * EPS * (abs(expected) + abs(math.log(scale)) + 1)
    assert abs(stretched.log_density(x) - expected) <= rounding
