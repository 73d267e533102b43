"""Draws from laws of TensorFlow Probability, against its own cdfs.

Seeds are fixed. Had they been free, each check would fail for a correct
library with probability `FALSE_ALARM`. Each has a control that must fail.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import keras_dp
from keras_dp.accountants import RDP
from keras_dp.ledger import CoordinateBounds, StudentTNoise
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
        test = stats.binomtest(beyond, SIZE, chance)
        assert test.pvalue > FALSE_ALARM
    # The control: tails that are lighter by a third.
    size = float(-noise.quantile(0.015 / 2))
    beyond = int((values > size).sum())
    assert stats.binomtest(beyond, SIZE, 0.01).pvalue < FALSE_ALARM


@each
def test_compiled_draws_are_those_of_eager_mode(distribution) -> None:
    noise = from_tfp(distribution)
    np.testing.assert_allclose(
        draws(noise, compiled=True), draws(noise), rtol=1e-5
    )


@each
def test_the_cdf_in_tensorflow(distribution) -> None:
    noise = from_tfp(distribution)
    x = np.r_[np.linspace(-9, 9, 64), 0.0, -1e-30, 1e300]
    with np.errstate(all="ignore"):
        expected = np.asarray(distribution.cdf(x))
    np.testing.assert_allclose(samplers.cdf(noise, x), expected, atol=1e-8)


def test_a_training_costs_what_it_costs_with_our_family() -> None:
    """The same law by both ways, through the query and the ledger."""
    noises = [from_tfp(DISTRIBUTIONS[0]), StudentTNoise(2.0, 5.0)]
    vectors = CoordinateBounds.from_vectors([[1.0, 0.5, 0.2]])
    epsilons = []
    for noise in noises:
        query = keras_dp.dp_queries.EncodedSumQuery(vectors, noise)
        state = query.initial_global_state()
        params = query.derive_sample_params(state)
        record = tf.constant([2.0, -0.5, 0.1])
        total = query.accumulate_record(
            params, query.initial_sample_state(record), record
        )
        result = query.get_noised_result(total, state)
        events = query.ledger_events(result.event)
        again = type(query).from_config(query.get_config())
        assert again == query
        with keras_dp.PrivacyLedger.in_memory(dataset="d") as ledger:
            ledger.record(
                keras_dp.ledger.PoissonSampling(0.01, drawn_by_library=True),
                events,
                100,
            )
            epsilons.append(RDP().epsilon(ledger, delta=1e-5))
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-5)
