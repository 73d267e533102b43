"""Checks for memorization on noise."""

import numpy as np
import pytest
from scipy import stats

from keras_dp.experimental.memorization import NoiseRecords

# The chance that a test fails although all is well.
FALSE_ALARM = 1e-6


def nearest(x, y, asked):
    """A model that knows everything by heart."""
    x, asked = x.reshape([len(x), -1]), asked.reshape([len(asked), -1])
    squares = (x**2).sum(axis=1) - 2 * asked @ x.T
    return y[np.argmin(squares, axis=1)]


def p_value(noise, right):
    """Of a model that predicts so many labels."""
    labels = noise.data[1]
    wrong = (labels + 1) % noise.classes
    said = np.where(np.arange(labels.size) < right, labels, wrong)
    return noise.check(said).pvalue


class TestTheCheck:
    def test_is_the_binomial_tail(self) -> None:
        noise = NoiseRecords(200, shape=(), classes=10)

        assert p_value(noise, 30) == pytest.approx(stats.binom.sf(29, 200, 0.1))

    @pytest.mark.parametrize("false_alarm", [0.01, 0.2])
    def test_gives_no_more_false_alarms_than_allowed(self, false_alarm) -> None:
        """Exactly, over all numbers of right labels."""
        noise = NoiseRecords(150, shape=(), classes=4)
        chance = sum(
            stats.binom.pmf(right, 150, 0.25)
            for right in range(151)
            if p_value(noise, right) <= false_alarm
        )

        assert 0.2 * false_alarm < chance <= false_alarm


class TestNoiseRecords:
    def test_are_the_same_for_a_seed(self) -> None:
        one, again = NoiseRecords(9).data, NoiseRecords(9).data
        other = NoiseRecords(9, seed=1).data

        np.testing.assert_array_equal(one[0], again[0])
        np.testing.assert_array_equal(one[1], again[1])
        assert (one[0] != other[0]).any()

    def test_are_known_by_heart_or_not_at_all(self) -> None:
        noise = NoiseRecords(400, shape=(5,), classes=3)
        x, y = noise.data
        others = NoiseRecords(400, shape=(5,), classes=3, seed=1).data

        assert noise.check(nearest(x, y, x)).k == 400
        assert noise.check(nearest(*others, x)).pvalue > FALSE_ALARM

    def test_need_a_prediction_each(self) -> None:
        with pytest.raises(ValueError, match="`predictions` must be"):
            NoiseRecords(9).check(np.zeros([9, 10]))
