"""Each sampler draws from the law that its family states.

Seeds are fixed. Had they been free, each check would fail for a correct
library with probability `FALSE_ALARM`. Every check is also shown to fail where
it ought.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_dp.ledger.events.noise_families import (
    GaussianNoise,
    LaplaceNoise,
    StudentTNoise,
)
from keras_dp.noise import samplers
from tests.noise_table import name_of

FALSE_ALARM = 1e-6
SIZE = 300_001  # Odd: the normal variables come in pairs.
MANY = 2**24
SCALE = 1.5
# Each with the law of SciPy.
LAWS = {
    GaussianNoise(SCALE): stats.norm(scale=SCALE),
    StudentTNoise(SCALE, 2.5): stats.t(2.5, scale=SCALE),
    StudentTNoise(SCALE, 9.0): stats.t(9, scale=SCALE),
    LaplaceNoise(SCALE): stats.laplace(scale=SCALE),
    StudentTNoise(SCALE, 1.0): stats.cauchy(scale=SCALE),
}
NOISES = [*LAWS]
each_noise = pytest.mark.parametrize("noise", NOISES, ids=name_of)
each_family = pytest.mark.parametrize(
    "noise",
    [
        pytest.param(noise, marks=getattr(pytest.mark, tier))
        for noise in NOISES
        for tier in ["nightly" if noise is NOISES[2] else "full"]
    ],
    ids=name_of,
)


def seed(number):
    return tf.constant([number, 11, 0, 0], tf.int64)


@functools.cache
def draws(noise, dtype="float32", number=3):
    """Returns `SIZE` draws."""
    drawn = samplers.sample(noise, tf.zeros([SIZE], dtype), seed(number))
    return drawn.numpy().astype(np.float64)


@functools.cache
def uniforms(noise, number=3):
    """Returns the cdf at draws, which takes longer than to draw them."""
    return noise.cdf(draws(noise, number=number))


def p_value(values, cdf):
    return stats.kstest(values, cdf).pvalue


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@each_noise
def test_draws_are_of_the_family(noise, dtype):
    """XLA draws the same numbers; see `tests/unit/noise`."""
    assert p_value(draws(noise, dtype=dtype), LAWS[noise].cdf) > FALSE_ALARM


@pytest.mark.parametrize("factor", [0.95, 1.05])
@each_noise
def test_a_scale_wrong_by_five_percent_would_be_seen(noise, factor):
    """Control."""
    assert p_value(draws(noise), noise.scaled(factor).cdf) < FALSE_ALARM


TAILS = (1e-2, 1e-4, 1e-6)


@functools.cache
def beyond(noise):
    """Returns how many of `MANY` draws are beyond the quantiles of `TAILS`.

    It also returns how many are if draws stop where one in 500,000 is larger.
    """
    limit = -float(noise.quantile(1e-6))

    @functools.partial(tf.function, jit_compile=True)
    def counts():
        values = samplers.sample(noise, tf.zeros([MANY]), seed(17))
        return [
            [
                tf.math.count_nonzero(sizes > -float(noise.quantile(p / 2)))
                for p in TAILS
            ]
            for sizes in (tf.abs(values), tf.minimum(tf.abs(values), limit))
        ]

    return [[int(count) for count in each] for each in counts()]


@each_family
def test_the_tails_are_neither_thin_nor_thick(noise):
    for count, p in zip(beyond(noise)[0], TAILS, strict=True):
        assert stats.binomtest(count, MANY, p).pvalue > FALSE_ALARM


@each_family
def test_a_cut_tail_would_be_seen(noise):
    """Control: noise that stops where only one in 500,000 draws is larger."""
    _, counts = beyond(noise)

    assert stats.binomtest(counts[-1], MANY, TAILS[-1]).pvalue < FALSE_ALARM


@pytest.mark.full
@pytest.mark.parametrize("lag", [1, 2, SIZE // 2, SIZE // 2 + 1])
@each_noise
def test_coordinates_are_independent(noise, lag):
    values = uniforms(noise)
    sizes = np.abs(values - 0.5)

    for each in (values, sizes):
        assert stats.pearsonr(each[:-lag], each[lag:]).pvalue > FALSE_ALARM
    assert stats.pearsonr(values[:-lag], sizes[lag:]).pvalue > FALSE_ALARM


@pytest.mark.full
@each_noise
def test_seeds_are_independent(noise):
    one, two = uniforms(noise), uniforms(noise, 4)

    assert stats.pearsonr(one, two).pvalue > FALSE_ALARM
    assert stats.pearsonr(one, two + 0.04 * one).pvalue < FALSE_ALARM
