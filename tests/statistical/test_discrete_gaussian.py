"""Integer noise has the discrete Gaussian law, to the last integer.

Seeds are fixed. Had they been free, each check would fail for a correct
library with probability `FALSE_ALARM`. Every check is also shown to fail where
it ought.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_dp.dp_queries.discrete_gaussian_sum_query import (
    DiscreteGaussianSumQuery,
)
from keras_dp.noise import discrete_gaussian

FALSE_ALARM = 1e-6
SIZE = 400_000
# Below, between and at integers, where the sampler's parameter jumps.
SCALES = [0.2, 0.5, 0.999, 1.0, 1.7, 3.0, 50.0]
# A chi-squared statistic is good to its law from some 5 expected per cell.
LEAST_EXPECTED = 10


def draws(scale, way="eager", seed=7):
    """Returns `SIZE` draws, or more where few are not zero; draws them once."""
    return _drawn(scale, way, seed)


@functools.cache
def _drawn(scale, way, seed):
    size = SIZE if scale > 0.2 else 3 * SIZE

    def function(seed):
        return discrete_gaussian.sample(scale, [size // 4, 4], seed)

    ways = {
        "eager": lambda f: f,
        "xla": functools.partial(tf.function, jit_compile=True),
    }
    seed = tf.constant([seed, 1, 0, 0], tf.int64)
    return np.ravel(ways[way](function)(seed))


def masses(scale, largest):
    """Returns the exact masses on `-largest` to `largest`, and beyond."""
    k = np.arange(-40 * int(scale + 1), 40 * int(scale + 1) + 1)
    weights = np.exp(-0.5 * np.square(k / scale))
    weights /= weights.sum()
    inside = weights[np.abs(k) <= largest]
    return inside, 1 - inside.sum()


def p_value(sample, scale):
    """Chi-squared, against the exact mass function of the stated scale."""
    largest = 0
    while masses(scale, largest + 1)[0][0] * len(sample) >= LEAST_EXPECTED:
        largest += 1
    inside, outside = masses(scale, largest)
    if largest == 0:
        beside = np.count_nonzero(sample)
        chance = masses(scale, 0)[1]
        return stats.binomtest(beside, len(sample), chance).pvalue
    clipped = np.clip(sample, -largest - 1, largest + 1) + largest + 1
    counts = np.bincount(clipped, minlength=2 * largest + 3)
    # Both tails are one cell, joined with the last if they are too small.
    observed = counts[1:-1].astype(float)
    expected = inside * len(sample)
    tail, tail_expected = counts[0] + counts[-1], outside * len(sample)
    if tail_expected >= LEAST_EXPECTED:
        observed = np.append(observed, tail)
        expected = np.append(expected, tail_expected)
    else:
        observed[-1] += tail
        expected[-1] += tail_expected
    return stats.chisquare(observed, expected * (len(sample) / sum(expected)))[
        1
    ]


# XLA compiles the same words for each scale, for seconds.
@pytest.mark.parametrize(
    ("scale", "way"),
    [
        *(pytest.param(s, "eager", marks=pytest.mark.full) for s in SCALES),
        *(
            pytest.param(s, "xla", marks=getattr(pytest.mark, tier))
            for s in SCALES
            for tier in ["full" if s in (0.999, 50.0) else "nightly"]
        ),
    ],
)
def test_draws_have_the_exact_law(scale, way):
    assert p_value(draws(scale, way), scale) > FALSE_ALARM


@pytest.mark.full
@pytest.mark.parametrize("factor", [0.95, 1.05])
@pytest.mark.parametrize("scale", SCALES[1:])
def test_the_check_sees_five_percent_of_the_scale(scale, factor):
    assert p_value(draws(scale), scale * factor) < FALSE_ALARM


@pytest.mark.parametrize("scale", [0.2, 0.5, 1.0, 1.7])
def test_the_check_sees_a_rounded_normal(scale):
    """Control: rounding continuous noise adds 1/12 to its variance, or so."""
    rounded = np.random.default_rng(0).normal(0, scale, SIZE).round()

    assert p_value(rounded.astype(int), scale) < FALSE_ALARM


@pytest.mark.full
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_the_check_sees_another_scale_where_all_but_nine_are_zero(factor):
    """Control: at 0.2 one draw in 134 000 is not zero."""
    assert p_value(draws(0.2), 0.2 * factor) < FALSE_ALARM


def test_the_check_sees_a_zero_of_twice_the_mass():
    """Control: the sampler without its rule for minus zero."""
    sample = draws(3.0).copy()
    sample[: SIZE // 50] = 0

    assert p_value(sample, 3.0) < FALSE_ALARM


@pytest.mark.parametrize("scale", [1e3, 2.0**20, 2.0**40])
def test_large_scales_are_nearly_normal(scale):
    """Chi-squared of squares; the discrete law differs by less than 1e-6."""
    sample = draws(scale) / scale
    statistic, law = np.square(sample).sum(), stats.chi2(SIZE)

    assert 2 * min(law.cdf(statistic), law.sf(statistic)) > FALSE_ALARM
    assert stats.kstest(sample, stats.norm.cdf).pvalue > FALSE_ALARM
    for wrong in (0.98, 1.02):  # Control.
        bad = statistic / wrong**2
        assert 2 * min(law.cdf(bad), law.sf(bad)) < FALSE_ALARM


@pytest.mark.parametrize("scale", [0.5, 3.0, 50.0])
@pytest.mark.parametrize("lag", [1, 2, 4, 1000])
def test_draws_are_independent(scale, lag):
    sample = draws(scale)
    for values in (sample, np.abs(sample)):
        p = stats.pearsonr(values[:-lag], values[lag:]).pvalue
        assert p > FALSE_ALARM
        mixed = values[lag:] + 0.02 * scale * values[:-lag] / values.std()
        p = stats.pearsonr(values[:-lag], mixed).pvalue
        assert p < FALSE_ALARM  # Control.


def test_seeds_give_independent_draws():
    one, two = draws(3.0), draws(3.0, seed=8)

    assert stats.pearsonr(one, two).pvalue > FALSE_ALARM
    assert stats.pearsonr(one, draws(3.0, "xla")).pvalue < FALSE_ALARM


def test_a_scale_of_zero_draws_zeros():
    assert not draws(0.0).any()


@pytest.mark.full
@pytest.mark.parametrize("scale", [0.7, 5.0])
def test_the_query_adds_noise_of_its_event(scale):
    query = DiscreteGaussianSumQuery(1.0, scale)
    state = query.initial_global_state(3)
    total = tf.range(SIZE)

    noised = query.get_noised_result(total, state).value

    (event,) = query.ledger_events(query.planned_event(state))
    assert p_value(noised.numpy() - np.arange(SIZE), event.noise_scale) > (
        FALSE_ALARM
    )
