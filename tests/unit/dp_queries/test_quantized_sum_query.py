"""Sums on a grid: what they bound, and that they stay on it."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from keras_dp.dp_queries import QuantizedSumQuery
from keras_dp.ledger import DiscreteGaussianSum
from tests.query_table import answer, contribution

QUERY = QuantizedSumQuery(l2_norm_clip=3.0, scale=0.0, granularity=0.125)
VALUES = st.one_of(
    st.floats(-1e4, 1e4, width=32),
    st.sampled_from([0.0, 3e38, -3e38, 1e-30, math.inf, math.nan, 0.125]),
)


def steps_of(record, query=QUERY):
    """The integers that a record adds."""
    return contribution(query, tf.constant(record, tf.float32)).numpy()


@pytest.mark.full
@given(record=st.lists(VALUES, min_size=1, max_size=8))
def test_no_record_exceeds_the_bound_of_the_event(record) -> None:
    (event,) = QUERY.ledger_events(
        QUERY.planned_event(QUERY.initial_global_state())
    )

    steps = steps_of(record).astype(object)  # Exact integers.

    assert sum(step * step for step in steps) <= event.l2_norm_bound**2


@pytest.mark.full
@given(record=st.lists(st.floats(-1.0, 1.0, width=32), max_size=8, min_size=1))
def test_records_within_the_clip_are_rounded_towards_zero(record) -> None:
    """1 in each of 8 coordinates has a norm below 3."""
    expected = np.trunc(np.array(record, np.float64) / 0.125)

    np.testing.assert_array_equal(steps_of(record), expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_adds_nothing(bad) -> None:
    assert not steps_of([1.0, bad]).any()


def test_the_event_is_in_steps_of_the_grid() -> None:
    query = QuantizedSumQuery(3.0, scale=6.0, granularity=0.125)
    event = query.planned_event(query.initial_global_state())

    assert query.ledger_events(event, "g") == (
        DiscreteGaussianSum("g", 24 * (1 + 2.0**-40), 48.0),
    )


class TestTheNoise:
    SAMPLES = 20_000
    FALSE_ALARM = 1e-6  # Chance that a correct query fails, were seeds free.

    def draws(self):
        query = dataclasses.replace(QUERY, scale=10.0)
        template = tf.zeros([self.SAMPLES])
        return answer(query, template, template[tf.newaxis][:0]).numpy()

    def p_value(self, draws, stddev) -> float:
        """Of a sum of 100 steps' width, which hides the grid from the test."""
        smoothed = draws + 0.125 * np.random.default_rng(0).uniform(
            -0.5, 0.5, self.SAMPLES
        )
        law = stats.norm(scale=stddev)
        return float(stats.kstest(smoothed, law.cdf).pvalue)

    @pytest.mark.full
    def test_lies_on_the_grid(self) -> None:
        steps = self.draws() / 0.125

        np.testing.assert_array_equal(steps, np.round(steps))
        assert len(np.unique(steps)) > 100

    def test_has_the_stated_width(self) -> None:
        draws = self.draws()

        assert self.p_value(draws, 10.0) > self.FALSE_ALARM
        for wrong in (9.0, 11.0):  # Controls.
            assert self.p_value(draws, wrong) < self.FALSE_ALARM


@pytest.mark.parametrize(
    "change",
    [
        {"granularity": 0.0},
        {"granularity": 1e-10},
        {"l2_norm_clip": -1.0},
        {"scale": math.nan},
        {"chunk_bytes": 0},
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused(change) -> None:
    with pytest.raises(ValueError, match="Received: "):
        dataclasses.replace(QUERY, **change)
