"""Clips that follow the mean norm, by hand and by their events."""

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries.adaptive.adaptive_clips import AdaptiveClipSumQuery
from keras_dp.ledger import GaussianSum
from tests.query_table import accumulated

# Norms 5 and 1.
RECORDS = tf.constant([[3.0, 4.0], [0.0, -1.0]])


def one_round(query, state, records=RECORDS):
    sample = accumulated(query, state, tf.zeros(records.shape[1:]), records)
    return query.get_noised_result(sample, state)


def clip_after(query, records=RECORDS):
    state = query.initial_global_state(1)
    return float(one_round(query, state, records).global_state.sum.l2_norm_clip)


def bare(initial=2.0, **others):
    return AdaptiveClipSumQuery(initial, 0.0, 0.0, 2, **others)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        # Norms are clipped at 4 to 4 and 1.
        (bare(), 2.5),
        # At 20, to 5 and 1.
        (bare(10.0), 3.0),
        # At 1, to 1 and 1.
        (bare(0.5), 1.0),
    ],
)
def test_the_next_clip_is_the_mean_clipped_norm(query, expected):
    assert clip_after(query) == pytest.approx(expected, rel=1e-12)


def test_the_divisor_is_the_expected_number():
    """Centred at 2, norms 4 and 1 sum to 1; over 4, and put back, 2.25."""
    query = AdaptiveClipSumQuery(2.0, 0.0, 0.0, expected_num_records=4)

    assert clip_after(query) == pytest.approx(2.25, rel=1e-12)


def test_events_follow_the_clip():
    query = AdaptiveClipSumQuery(2.0, 0.5, 1.5, 2)
    state = query.initial_global_state(4)
    state = one_round(query, state).global_state
    clip = float(state.sum.l2_norm_clip)

    gradient, norms = query.ledger_events(query.planned_event(state), "g")

    assert clip != 2.0
    assert gradient == GaussianSum("g", clip, 0.5 * clip)
    assert norms.l2_norm_bound == clip
    assert norms.noise_stddev == pytest.approx(1.5 * 2 * clip, rel=1e-15)
    assert query.adapts


@pytest.mark.full
def test_no_noise_moves_the_clip_out_of_its_range():
    query = AdaptiveClipSumQuery(2.0, 1.0, 1e9, 1)
    a_round = tf.function(lambda state: one_round(query, state)[:2])
    for seed in range(2):
        state, clips = query.initial_global_state(seed), []
        for _ in range(40):
            value, state = a_round(state)
            clips.append(float(state.sum.l2_norm_clip))
            assert np.isfinite(value).all()

        assert min(clips) >= 2.0 / 1000
        assert max(clips) <= 2.0 * 1000
        assert np.divide(clips[1:], clips[:-1]).max() <= 2.0 * (1 + 1e-12)
        assert len(set(clips)) > 2  # Noise does move it.
