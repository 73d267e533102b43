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
def sampler(noise, way):
    sample = functools.partial(samplers.sample, noise)
    return tf.function(sample, jit_compile=True) if way == "xla" else sample


def draws(noise, way="eager", dtype="float32", number=3):
    """Returns `SIZE` draws, which are drawn once."""
    return _drawn(noise, way, dtype, number)


@functools.cache
def uniforms(noise, number=3):
    """Returns the cdf at draws, which takes longer than to draw them."""
    return noise.cdf(draws(noise, number=number))


@functools.cache
def _drawn(noise, way, dtype, number):
    like = tf.zeros([SIZE], dtype)
    drawn = sampler(noise, way)(like, seed(number))
    return drawn.numpy().astype(np.float64)


def p_value(values, cdf):
    return stats.kstest(values, cdf).pvalue


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@each_noise
def test_draws_are_of_the_family(noise, dtype):
    """In float64 XLA draws the same numbers; see `tests/unit/noise`."""
    assert p_value(draws(noise, dtype=dtype), LAWS[noise].cdf) > FALSE_ALARM


@each_family
def test_draws_of_xla_are_of_the_family(noise):
    assert p_value(draws(noise, "xla"), LAWS[noise].cdf) > FALSE_ALARM


@pytest.mark.parametrize("factor", [0.95, 1.05])
@each_noise
def test_a_scale_wrong_by_five_percent_would_be_seen(noise, factor):
    """Control."""
    assert p_value(draws(noise), noise.scaled(factor).cdf) < FALSE_ALARM


@pytest.mark.full
@pytest.mark.parametrize("wrong", [6.0, 20.0])
def test_wrong_degrees_of_freedom_would_be_seen(wrong):
    """Control."""
    law = StudentTNoise(SCALE, wrong)
    assert p_value(draws(NOISES[2]), law.cdf) < FALSE_ALARM


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(noise, marks=getattr(pytest.mark, tier))
        for noise in NOISES
        for tier in ["full" if noise in NOISES[:3] else "nightly"]
    ],
    ids=name_of,
)
def test_another_family_of_the_same_variance_would_be_seen(noise):
    """Control; where there is no variance, of the same quartiles."""
    for other in NOISES:
        if type(other) is type(noise):
            continue
        ratio = other.quantile(0.25) / noise.quantile(0.25)
        if np.isfinite(other.variance) and np.isfinite(noise.variance):
            ratio = np.sqrt(other.variance / noise.variance)
        scaled = other.scaled(1 / ratio)
        apart = np.abs(
            scaled.cdf(np.linspace(-9, 9, 999))
            - noise.cdf(np.linspace(-9, 9, 999))
        ).max()
        # Nearer ones need more draws than these.
        if apart > 0.008:
            assert p_value(draws(noise), scaled.cdf) < FALSE_ALARM
    assert p_value(draws(noise), stats.norm(scale=0.9).cdf) < FALSE_ALARM


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


@pytest.mark.parametrize("factor", [0.9, 1.1])
@each_family
def test_a_thick_or_thin_tail_would_be_seen(noise, factor):
    """Control: a scale wrong by a tenth, at one draw in ten thousand."""
    # The tail of a Cauchy law is only proportional to its scale.
    place = 0 if getattr(noise, "df", 9) == 1 else 1
    count, p = beyond(noise)[0][place], TAILS[place]

    wrong = 2 * float(noise.scaled(factor).cdf(noise.quantile(p / 2)))

    assert stats.binomtest(count, MANY, wrong).pvalue < FALSE_ALARM


@pytest.mark.full
@pytest.mark.parametrize("lag", [1, 2, SIZE // 2, SIZE // 2 + 1])
@each_noise
def test_coordinates_are_independent(noise, lag):
    values = uniforms(noise)
    sizes = np.abs(values - 0.5)

    for each in (values, sizes):
        result = stats.pearsonr(each[:-lag], each[lag:])
        assert result.pvalue > FALSE_ALARM
    crossed = stats.pearsonr(values[:-lag], sizes[lag:])
    assert crossed.pvalue > FALSE_ALARM


@pytest.mark.full
@each_noise
def test_seeds_are_independent(noise):
    one, two = uniforms(noise), uniforms(noise, 4)

    assert stats.pearsonr(one, two).pvalue > FALSE_ALARM
    assert stats.pearsonr(one, two + 0.04 * one).pvalue < FALSE_ALARM
