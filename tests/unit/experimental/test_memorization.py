"""Checks for memorization on noise."""

import numpy as np
import pytest
from scipy import stats

from keras_dp.experimental.memorization import MemorizationCheck, NoiseRecords

# The chance that a test fails although all is well.
FALSE_ALARM = 1e-6


def nearest(x, y, asked):
    """A model that knows everything by heart."""
    x, asked = x.reshape([len(x), -1]), asked.reshape([len(asked), -1])
    squares = (x**2).sum(axis=1) - 2 * asked @ x.T
    return y[np.argmin(squares, axis=1)]


class TestTheCheck:
    def test_is_the_binomial_tail(self) -> None:
        check = MemorizationCheck(30, 200, 10)

        assert check.p_value == pytest.approx(stats.binom.sf(29, 200, 0.1))

    def test_gives_no_more_false_alarms_than_it_names(self) -> None:
        """Exactly, over all numbers of right labels."""
        for false_alarm in (0.01, 0.2):
            chance = sum(
                stats.binom.pmf(correct, 150, 0.25)
                for correct in range(151)
                if MemorizationCheck(correct, 150, 4, false_alarm).memorizes
            )
            assert 0.2 * false_alarm < chance <= false_alarm

    @pytest.mark.parametrize(
        ("fields", "match"),
        [
            ((5, 4, 2), "`correct` must be at most"),
            ((0, 0, 2), "`labels` must be"),
            ((0, 1, 1), "`classes` must be"),
            ((0, 1, 2, 0.0), "`false_alarm` must be"),
        ],
    )
    def test_refuses_what_cannot_be(self, fields, match) -> None:
        with pytest.raises(ValueError, match=match):
            MemorizationCheck(*fields)


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

        assert noise.check(nearest(x, y, x)).correct == 400
        found = noise.check(nearest(*others, x), false_alarm=FALSE_ALARM)
        assert not found.memorizes

    def test_need_a_prediction_each(self) -> None:
        with pytest.raises(ValueError, match="`predictions` must be"):
            NoiseRecords(9).check(np.zeros([9, 10]))
