"""Laws that every noise family obeys, at any float."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.noise_table import STANDARD

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
