"""Laws of queries with adapting clips, for any records."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keras_dp.auditing import sensitivity
from keras_dp.dp_queries.adaptive.adaptive_clips import (
    AdaptiveClipSumQuery,
    QuantileAdaptiveClipSumQuery,
)
from tests.query_table import accumulated

ULP = 2.0**-23
TINY = 2.0**-126

law = settings(max_examples=100)

ANY = st.floats(width=32, allow_subnormal=False)
CLIPS = st.floats(2.0**-40, 2.0**40, width=32)
BATCHES = st.tuples(st.integers(1, 5), st.integers(1, 4)).flatmap(
    lambda shape: hnp.arrays(np.float32, shape, elements=ANY)
)


def sample_of(query, records, state=None):
    state = query.initial_global_state(0) if state is None else state
    return accumulated(
        query, state, tf.zeros(records.shape[1:]), tf.constant(records)
    )


@pytest.mark.full
@law
@given(BATCHES, CLIPS)
def test_adding_a_record_moves_both_sums_by_at_most_their_bounds(records, clip):
    """As both events say: the clipped sum, and the bits or the norms."""
    for query in (
        AdaptiveClipSumQuery(clip, 1.0, 1.0, 5),
        QuantileAdaptiveClipSumQuery(clip, 1.0, 0.5, 0.2, 1.0, 5),
    ):
        state = query.initial_global_state(0)
        one, two = (
            [
                sensitivity.sum_of(each)
                for each in query.mechanisms(sample_of(query, part), state)
            ]
            for part in (records, records[:-1])
        )
        sums, beside = map(sensitivity.distance, one, two)
        bounds = [
            event.l2_norm_bound
            for event in query.ledger_events(query.planned_event(state))
        ]

        rounding = (4 + len(records) ** 2) * ULP * clip + 10 * TINY
        assert sums <= bounds[0] + rounding
        assert beside <= bounds[1] * (1 + 2.0**-22)  # A step of the grid.


@pytest.mark.full
@law
@given(BATCHES, CLIPS, st.integers(0, 2**32))
def test_a_clip_is_positive_and_follows_from_what_was_released(
    records, clip, seed
):
    """Any records: the next clip is finite, and within its limits."""
    for query, lowest, highest in (
        (AdaptiveClipSumQuery(clip, 1.0, 9.0, 1), clip / 1e3, clip * 1e3),
        (
            QuantileAdaptiveClipSumQuery(clip, 1.0, 0.5, 5.0, 9.0, 1),
            clip * np.exp(-2.5),
            clip * np.exp(2.5),
        ),
    ):
        state = query.initial_global_state(seed)
        result = query.get_noised_result(
            sample_of(query, records, state), state
        )
        after = float(result.global_state.sum.l2_norm_clip)

        assert lowest * (1 - 1e-12) <= after <= highest * (1 + 1e-12)
        assert np.isfinite(result.value).all()
