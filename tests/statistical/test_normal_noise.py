"""Normal noise is normal: in the middle, in the tails, and jointly.

Seeds are fixed. Had they been free, each check would fail for a correct
library with probability `FALSE_ALARM`. Every check is also shown to fail where
it ought.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from scipy import special, stats

from keras_dp.noise import box_muller, grid, seeds, streams
from keras_dp.noise.xla import Arithmetic

FALSE_ALARM = 1e-6
SIZE = 10_000_000
UNIT = 2.0**24
CELLS = 1000
DISTANCES = (2.0, 3.0, 4.0, 4.4, 4.75, 5.2)


@functools.cache
def draws(number=1):
    seed, stddev = seeds.fresh(number), tf.constant(UNIT, tf.float64)
    drawn = streams.rounded_normals(SIZE, seed, stddev)[0].numpy()
    return (drawn / UNIT).astype(np.float32)


@functools.cache
def coarse():
    """Normal variables from 16-bit uniform ones, which end at 4.3."""
    words = np.random.default_rng(3).integers(0, 2**16, SIZE)
    return special.ndtri((words + 0.5) * 2.0**-16).astype(np.float32)


def cells_p_value(values):
    """Chi squared over cells of equal probability."""
    cells = (special.ndtr(values.astype(np.float64)) * CELLS).astype(int)
    return stats.chisquare(np.bincount(cells, minlength=CELLS)).pvalue


def tail_p_values(values):
    """Exact tests of how many are further out, on each side."""
    found = []
    for distance in DISTANCES:
        p = special.ndtr(-distance)
        for side in (values, -values):
            count = int(np.count_nonzero(side > np.float32(distance)))
            found.append(stats.binomtest(count, SIZE, p).pvalue)
    return found


def squares_p_value(values):
    """The sum of squares is chi squared."""
    law = stats.chi2(SIZE)
    total = np.sum(values.astype(np.float64) ** 2)
    return 2 * min(law.cdf(total), law.sf(total))


def test_the_law_is_normal():
    values = draws()

    assert stats.kstest(values[:1_000_000], "norm").pvalue > FALSE_ALARM
    assert cells_p_value(values) > FALSE_ALARM
    assert squares_p_value(values) > FALSE_ALARM


@pytest.mark.parametrize("factor", [0.995, 1.005])
def test_a_scale_wrong_by_half_a_percent_would_be_seen(factor):
    """Control."""
    wrong = draws() * np.float32(factor)

    assert squares_p_value(wrong) < FALSE_ALARM
    assert cells_p_value(wrong) < FALSE_ALARM


def test_the_tails_are_neither_thin_nor_thick():
    each = tail_p_values(draws())

    assert min(each) > FALSE_ALARM / len(each)


def test_tails_that_end_early_would_be_seen():
    """Control: a cut tail, and the tail of a coarse grid."""
    for wrong in (np.clip(draws(), -4.3, 4.3), coarse()):
        each = tail_p_values(wrong)
        assert min(each) < FALSE_ALARM / len(each)


def test_the_signs_are_those_of_a_fair_coin():
    values = draws()

    count = int(np.count_nonzero(values > 0))

    assert (values != 0).all()
    assert stats.binomtest(count, SIZE).pvalue > FALSE_ALARM


def _lanes():
    """Values of a row of a piece, of which a piece has ten."""
    pieces = -(-SIZE // (10 * streams._SIZES[-1]))
    return -(-SIZE // (10 * pieces * streams._ALIGNMENT)) * streams._ALIGNMENT


@pytest.mark.parametrize("lag", [1, 2, _lanes(), 10 * _lanes(), SIZE // 2])
def test_coordinates_are_independent(lag):
    """Lags of a register, a row of a piece, a piece and half the draw."""
    values = draws()
    one, two = values[:-lag], values[lag:]

    for left, right in (
        (one, two),
        (one * one, two * two),
        (one, two * two),
        (one * one, two),
    ):
        assert stats.pearsonr(left, right).pvalue > FALSE_ALARM
    assert stats.pearsonr(one, two + 0.006 * one).pvalue < FALSE_ALARM


def test_seeds_are_independent():
    one, two = draws(), draws(2)

    assert stats.pearsonr(one, two).pvalue > FALSE_ALARM


def test_every_word_becomes_a_finite_number_that_is_not_zero():
    bits = [0, 1, 2, 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF]
    grid = np.array(np.meshgrid(*[bits] * 4), np.uint32).reshape(4, -1)

    *values, _ = box_muller.pair(Arithmetic(), [tf.constant(w) for w in grid])

    assert np.isfinite(values).all()
    assert (np.asarray(values) != 0).all()
    assert np.abs(values).max() < 9.5


ROUNDED = 2_000_000


@functools.cache
def rounded():
    like = tf.zeros([ROUNDED])
    stddev = tf.constant(UNIT, tf.float64)
    (drawn,), _ = grid.draws([like], stddev, seeds.fresh(5))
    return drawn.numpy()


def low_bits_p_value(integers):
    """Chi squared over the last eight bits."""
    return stats.chisquare(np.bincount(integers & 255, minlength=256)).pvalue


def test_rounded_normals_are_normal_down_to_the_last_bit():
    values = rounded() / UNIT

    assert stats.kstest(values, "norm").pvalue > FALSE_ALARM
    assert cells_p_value(values) > FALSE_ALARM
    assert low_bits_p_value(rounded()) > FALSE_ALARM


def test_rounded_float32_normals_would_be_seen():
    """Control: beyond one, their last bits are 0."""
    wrong = np.rint(draws()[:ROUNDED].astype(np.float64) * UNIT)

    assert low_bits_p_value(wrong.astype(np.int64)) < FALSE_ALARM
