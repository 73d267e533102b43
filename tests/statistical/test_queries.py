"""The noise is the noise that the event states, and independent of all else.

Seeds are fixed. Had they been free, each check would fail for a correct
library with probability `FALSE_ALARM`. Every check is also shown to fail where
it ought.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_dp.dp_queries import (
    GaussianAverageQuery,
    GaussianSumQuery,
    NestedQuery,
)
from keras_dp.noise import grid
from tests.query_table import accumulated

FALSE_ALARM = 1e-6
SIZE = 60_000
STDDEV = 3.0  # On the sum, in every query below.
DENOMINATOR = 7.0
RECORDS = tf.constant(np.linspace(-1, 1, 2 * SIZE).reshape(2, SIZE), tf.float32)


def compiled(function):
    return tf.function(function, jit_compile=True)


WAYS = {"eager": lambda function: function, "tf": tf.function, "xla": compiled}


def in_units(total):
    """Returns a sum in the unit of the records, from steps of the grid."""
    is_steps = total.dtype == tf.int64
    return np.float64(total) * (float(grid.spacing(STDDEV)) if is_steps else 1)


@functools.cache
def noise(kind, way, seed=7):
    """Returns what was added to the sum, `[leaves, SIZE]`, for two rounds."""
    query, template, records, factor = {
        "sum": lambda: (
            GaussianSumQuery(2.0, STDDEV),
            tf.zeros([SIZE]),
            RECORDS,
            1.0,
        ),
        "sum-float64": lambda: (
            GaussianSumQuery(2.0, STDDEV),
            tf.zeros([SIZE], tf.float64),
            tf.cast(RECORDS, tf.float64),
            1.0,
        ),
        "sum-of-leaves": lambda: (
            GaussianSumQuery(2.0, STDDEV),
            [tf.zeros([SIZE]), tf.zeros([SIZE // 4, 4])],
            [RECORDS, tf.reshape(RECORDS, [2, SIZE // 4, 4])],
            1.0,
        ),
        "average": lambda: (
            GaussianAverageQuery(2.0, STDDEV, DENOMINATOR),
            tf.zeros([SIZE]),
            RECORDS,
            DENOMINATOR,
        ),
        "nested": lambda: (
            NestedQuery(
                {
                    "a": [GaussianSumQuery(1.0, STDDEV)] * 2,
                    "b": NestedQuery((GaussianSumQuery(5.0, STDDEV),)),
                }
            ),
            {"a": [tf.zeros([SIZE])] * 2, "b": (tf.zeros([SIZE]),)},
            {"a": [RECORDS] * 2, "b": (RECORDS,)},
            1.0,
        ),
    }[kind]()

    def rounds(state, records):
        sample = accumulated(query, state, template, records)
        first = query.get_noised_result(sample, state)
        second = query.get_noised_result(sample, first.global_state)
        return sample, first.value, second.value

    state = query.initial_global_state(seed)
    sample, *values = WAYS[way](rounds)(state, records)
    return [
        np.stack(
            [
                np.ravel(factor * np.float64(v) - in_units(s))
                for v, s in zip(
                    tf.nest.flatten(value),
                    tf.nest.flatten(sample),
                    strict=True,
                )
            ]
        )
        for value in values
    ]


KINDS = ["sum", "sum-float64", "sum-of-leaves", "average", "nested"]
CASES = [
    *[(kind, "eager") for kind in KINDS],
    ("sum", "tf"),
    ("sum", "xla"),
    # It draws for each part as for a sum, and XLA takes long for it.
    pytest.param("nested", "xla", marks=pytest.mark.nightly),
]


def scale_p_value(draws, stddev):
    """Kolmogorov-Smirnov, against the normal law of the stated stddev."""
    return stats.kstest(draws, stats.norm(scale=stddev).cdf).pvalue


def spread_p_value(draws, stddev):
    """The sum of squares is chi-squared; sharper for the scale than KS."""
    statistic = np.square(draws / stddev).sum()
    law = stats.chi2(len(draws))
    return 2 * min(law.cdf(statistic), law.sf(statistic))


def correlation_p_value(one, two):
    return stats.pearsonr(one, two).pvalue


@pytest.mark.full
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_noise_on_the_sum_is_normal_with_the_stated_stddev(kind, way):
    for leaves in noise(kind, way):
        for draws in leaves:
            assert scale_p_value(draws, STDDEV) > FALSE_ALARM
            assert spread_p_value(draws, STDDEV) > FALSE_ALARM


@pytest.mark.parametrize("wrong", [0.9 * STDDEV, 1.1 * STDDEV])
@pytest.mark.parametrize("check", [scale_p_value, spread_p_value])
@pytest.mark.parametrize(
    "way", ["eager", pytest.param("xla", marks=pytest.mark.full)]
)
def test_the_checks_of_the_scale_can_fail(check, wrong, way):
    """Control: a 10 % error in scale would have been seen."""
    assert check(noise("sum", way)[0][0], wrong) < FALSE_ALARM


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_leaves_and_rounds_are_independent(kind, way):
    """No two leaves, queries or rounds share their noise."""
    every = np.concatenate(noise(kind, way))
    for i in range(len(every)):
        for j in range(i):
            assert correlation_p_value(every[i], every[j]) > FALSE_ALARM
            # Steps of a grid meet now and then by chance.
            assert np.isin(every[i][:50], every[j]).sum() <= 3


def test_the_check_of_independence_can_fail():
    """Control: the same seed, or 4 % of another draw, would have been seen."""
    one = noise("sum", "eager")[0][0]
    noise.cache_clear()
    again = noise("sum", "eager")[0][0]
    other = noise("sum", "eager")[1][0]

    assert correlation_p_value(one, again) < FALSE_ALARM
    assert correlation_p_value(one, other + 0.04 * one) < FALSE_ALARM
