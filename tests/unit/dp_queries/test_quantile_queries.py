"""Quantiles, and clips that follow them, by hand.

Vectors come from the tests of TensorFlow Privacy's queries of these names.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import (
    QuantileAdaptiveClipSumQuery,
    QuantileEstimatorQuery,
)
from tests.query_table import accumulated

# For each: first estimate, target, rate, geometric, records, estimates.
ROOT = 2 * math.sqrt(2)
VECTORS = [
    (10.0, 0.0, 1.0, False, (8.5, 7.25), (9, 8, 7.5, 7, 7)),
    (16.0, 0.0, math.log(2), True, (5.0, 2.5), (8, 4, ROOT, 2, 2)),
    (0.0, 1.0, 1.0, False, (1.5, 2.75), (1, 2, 2.5, 3, 3)),
    (0.5, 1.0, math.log(2), True, (1.5, 3.0), (1, 2, ROOT, 4, 4)),
]


def rounds(query, records, count, state=None):
    """Returns the values and states of some rounds over the same records."""
    state = query.initial_global_state(1) if state is None else state
    template = tf.nest.map_structure(lambda leaf: leaf[0], records)
    for _ in range(count):
        sample = accumulated(query, state, template, records)
        value, state, _ = query.get_noised_result(sample, state)
        yield value, state


def estimator(initial, target, rate, geometric, *, stddev=0.0):
    return QuantileEstimatorQuery(initial, target, rate, stddev, 2.0, geometric)


def adaptive(initial, target, rate, geometric, **others):
    given = {
        "initial_l2_norm_clip": initial,
        "noise_multiplier": 0.0,
        "target_unclipped_quantile": target,
        "learning_rate": rate,
        "clipped_count_stddev": 0.0,
        "expected_num_records": 2.0,
        "geometric_update": geometric,
    }
    return QuantileAdaptiveClipSumQuery(**{**given, **others})


@pytest.mark.parametrize("vector", VECTORS)
def test_clips_move_as_by_hand(vector):
    *arguments, sizes, expected = vector
    records = np.array([[sizes[0]], [-sizes[1]]], np.float32)

    got = list(rounds(adaptive(*arguments), tf.constant(records), 5))

    clips = [state.sum.l2_norm_clip for _, state in got]
    np.testing.assert_allclose(clips, expected, rtol=1e-12)
    before = np.array([arguments[0], *expected[:-1]])
    sums = np.minimum(sizes[0], before) - np.minimum(sizes[1], before)
    # A float32 sum of numbers up to 10.
    np.testing.assert_allclose(
        np.ravel([value for value, _ in got]), sums, atol=1e-6
    )


class TestTheBit:
    """Each record moves the sum of bits by one half."""

    def total(self, records, mask=None):
        query = estimator(2.0, 0.5, 1.0, False)
        state = query.initial_global_state()
        records = tf.constant(records, tf.float32)
        return float(accumulated(query, state, 0.0, records, mask))

    @pytest.mark.parametrize(
        ("record", "bit"),
        [(1.0, 0.5), (2.0, 0.5), (-9.0, 0.5), (2.001, -0.5), (3e38, -0.5)],
    )
    def test_of_a_record(self, record, bit):
        assert self.total([record]) == bit

    @pytest.mark.parametrize("record", [math.nan, math.inf, -math.inf])
    def test_of_what_is_not_finite_is_none(self, record):
        assert self.total([record]) == 0.0
        assert self.total([record, 1.0]) == 0.5

    def test_is_exact_for_many_records(self):
        """In float32 a sum of halves would stop at 2^23."""
        query = estimator(2.0, 0.5, 1.0, False)
        params = query.derive_sample_params(query.initial_global_state())
        many = tf.constant(2.0**40, query.initial_sample_state().dtype)

        total = query.accumulate_records(params, many, tf.constant([1.0]))

        assert float(total) == 2.0**40 + 0.5

    @pytest.mark.parametrize("record", [math.nan, math.inf])
    def test_of_a_clipped_record_that_is_not_finite_is_none(self, record):
        query = adaptive(5.0, 0.5, 1.0, True)
        state = query.initial_global_state()
        records = tf.constant([[record, 0.0], [3.0, 4.0]])

        sample = accumulated(query, state, records[0], records)

        assert sample.sum.numpy().tolist() == [3.0, 4.0]
        assert float(sample.side) == 0.5


@pytest.mark.parametrize("record", [[1.0, 2.0], {"a": 1.0}, tf.zeros([1])])
def test_records_of_an_estimator_are_scalars(record):
    query = QuantileEstimatorQuery(1.0, 0.5, 1.0, 0.0, 2)

    with pytest.raises(ValueError, match="must be scalars"):
        query.accumulate_record(None, None, record)


def test_the_two_events_are_worth_the_noise_multiplier_of_the_paper():
    """Andrew et al., Theorem 1: z = (z_sum^-2 + (2 sigma_b)^-2)^(-1/2)."""
    query = adaptive(3.0, 0.5, 0.2, True, noise_multiplier=0.9)
    query = dataclasses.replace(query, clipped_count_stddev=5.0)
    state = query.initial_global_state()

    events = query.ledger_events(query.planned_event(state), "g")

    assert [event.name for event in events] == ["g", "g/clipped_count"]
    cost = math.hypot(*(e.l2_norm_bound / e.noise_stddev for e in events))
    assert 1 / cost == pytest.approx((0.9**-2 + 10.0**-2) ** -0.5, rel=1e-14)
    assert query.adapts


@pytest.mark.parametrize("stddev", [0.0, 1e30])
@pytest.mark.parametrize("geometric", [False, True])
@pytest.mark.parametrize("target", [0.0, 0.5, 1.0])
def test_clips_stay_finite_and_positive(geometric, target, stddev):
    query = adaptive(1.0, target, 1e6, geometric, noise_multiplier=10.0)
    query = dataclasses.replace(query, clipped_count_stddev=stddev)
    records = tf.constant([[8.5], [-7.25]])

    for value, state in itertools.islice(rounds(query, records, 9), 9):
        assert 1e-20 <= state.sum.l2_norm_clip <= 1e20
        assert state.sum.stddev == 10 * state.sum.l2_norm_clip
        assert np.isfinite(value).all()
        query.ledger_events(query.planned_event(state))  # Valid.


def test_estimates_recover_from_a_limit():
    """A negative estimate is not a debt that later rounds must pay back."""
    query = adaptive(1.0, 0.0, 5.0, False)

    (_, low), *_ = rounds(query, tf.constant([[0.5], [0.5]]), 1)

    assert low.sum.l2_norm_clip == 1e-20
    assert low.side.current_estimate == 1e-20
