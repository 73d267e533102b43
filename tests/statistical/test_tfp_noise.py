"""Draws from laws of TensorFlow Probability, against its own cdfs.

Seeds are fixed. Had they been free, each check would fail for a correct
library with probability `FALSE_ALARM`. Each has a control that must fail.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_dp.noise import from_tfp, samplers

tfp = pytest.importorskip("tensorflow_probability.substrates.numpy")
pytestmark = pytest.mark.full

FALSE_ALARM = 1e-6
SIZE = 300_000


def made(name, *parameters):
    return getattr(tfp.distributions, name)(*map(np.float64, parameters))


DISTRIBUTIONS = [
    made("StudentT", 5.0, 0.0, 2.0),
    made("StudentT", 1.5, 0.0, 1.0),
    made("Laplace", 0.0, 0.5),
    made("Logistic", 0.0, 1.0),
    made("GeneralizedNormal", 0.0, 1.0, 0.9),
    made("JohnsonSU", 0.0, 1.5, 0.0, 1.0),
]
each = pytest.mark.parametrize(
    "distribution", DISTRIBUTIONS, ids=lambda each: each.name
)


def draws(noise, dtype="float32", compiled=False):
    sample = functools.partial(samplers.sample, noise)
    if compiled:
        sample = tf.function(sample, jit_compile=True)
    like = tf.zeros([SIZE], dtype)
    return sample(like, tf.constant([5, 11, 0, 0], tf.int64)).numpy()


def p_value(values, distribution, stretched=1.0):
    def cdf(x):
        with np.errstate(all="ignore"):
            return np.asarray(distribution.cdf(np.float64(x) / stretched))

    return stats.kstest(values, cdf).pvalue


@each
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_draws_are_of_the_law(distribution, dtype) -> None:
    noise = from_tfp(distribution)
    values = draws(noise, dtype)
    assert p_value(values, distribution) > FALSE_ALARM
    assert p_value(values, distribution, stretched=1.04) < FALSE_ALARM
    scaled = draws(noise.scaled(3.0), dtype)
    assert p_value(scaled, distribution, stretched=3.0) > FALSE_ALARM


@each
def test_far_draws_are_as_many_as_there_should_be(distribution) -> None:
    """The KS test hardly sees tails: count what is beyond quantiles."""
    noise = from_tfp(distribution)
    values = np.abs(draws(noise))
    for chance in (1e-2, 1e-3, 1e-4):
        size = float(-noise.quantile(chance / 2))
        beyond = int((values > size).sum())
        assert stats.binomtest(beyond, SIZE, chance).pvalue > FALSE_ALARM
    # The control: tails that are lighter by a third.
    size = float(-noise.quantile(0.015 / 2))
    beyond = int((values > size).sum())
    assert stats.binomtest(beyond, SIZE, 0.01).pvalue < FALSE_ALARM
