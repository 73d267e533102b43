"""Clips that follow the mean norm, by hand and by their events."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import NestedQuery
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
    return float(
        one_round(query, state, records).global_state.sum_state.l2_norm_clip
    )


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


def test_a_second_round_clips_by_the_new_bound():
    query = bare()
    state = one_round(query, query.initial_global_state()).global_state

    result = one_round(query, state)

    # (3, 4) at norm 2.5 is (1.5, 2), and (0, -1) is within it.
    np.testing.assert_allclose(result.value, [1.5, 1.0], rtol=1e-6)
    # Norms at 5: 5 and 1.
    clip = float(result.global_state.sum_state.l2_norm_clip)
    assert clip == pytest.approx(3.0, rel=1e-12)


def test_the_divisor_is_the_expected_number():
    """Centred at 2, norms 4 and 1 sum to 1; over 4, and put back, 2.25."""
    query = AdaptiveClipSumQuery(2.0, 0.0, 0.0, expected_num_records=4)

    assert clip_after(query) == pytest.approx(2.25, rel=1e-12)


def test_an_empty_sample_leaves_the_clip():
    assert clip_after(bare(), RECORDS[:0]) == 2.0


class TestEvents:
    """Costs of one round, in units of the sum's."""

    def noise_multiplier(self, events):
        costs = [e.l2_norm_bound / e.noise_stddev for e in events]
        return 1 / math.hypot(*costs)

    def events(self, query):
        return query.ledger_events(
            query.planned_event(query.initial_global_state()), "g"
        )

    def test_of_one_layer(self):
        query = AdaptiveClipSumQuery(2.0, 0.725, 2.5, 128)

        events = self.events(query)

        assert events == (
            GaussianSum("g", 2.0, 1.45),
            GaussianSum("g/norms", 2.0, 10.0),
        )
        assert self.noise_multiplier(events) == pytest.approx(0.7175, abs=5e-5)

    def test_of_one_layer_as_in_the_paper(self):
        """Without centring a norm moves the sum by twice as much."""
        gradient, norms = self.events(AdaptiveClipSumQuery(2, 0.725, 2.5, 128))
        uncentred = dataclasses.replace(
            norms, l2_norm_bound=2 * norms.l2_norm_bound
        )

        got = self.noise_multiplier([gradient, uncentred])

        assert got == pytest.approx(0.6963, abs=5e-5)

    def test_of_ten_layers_in_one_sample(self):
        """[10 / sigma^2 + 10 / (2 sigma_norms)^2]^(-1/2)."""
        query = NestedQuery(
            {
                f"layer_{i}": AdaptiveClipSumQuery(10.0**-i, 0.725, 2.5, 128)
                for i in range(10)
            }
        )

        events = self.events(query)

        assert len({event.name for event in events}) == 20
        expected = (10 / 0.725**2 + 10 / 5**2) ** -0.5
        assert self.noise_multiplier(events) == pytest.approx(
            expected, rel=1e-14
        )

    def test_follow_the_clip(self):
        query = AdaptiveClipSumQuery(2.0, 0.5, 1.5, 2)
        state = query.initial_global_state(4)
        state = one_round(query, state).global_state
        clip = float(state.sum_state.l2_norm_clip)

        gradient, norms = query.ledger_events(query.planned_event(state), "g")

        assert clip != 2.0
        assert gradient == GaussianSum("g", clip, 0.5 * clip)
        assert norms.l2_norm_bound == clip
        assert norms.noise_stddev == pytest.approx(1.5 * 2 * clip, rel=1e-15)
        assert query.adapts


def test_each_layer_has_its_own_clip():
    query = NestedQuery({"a": bare(), "b": [bare(0.5)]})
    state = query.initial_global_state()
    records = {"a": RECORDS, "b": [10 * RECORDS]}
    template = tf.nest.map_structure(lambda leaf: leaf[0], records)
    sample = accumulated(query, state, template, records)

    state = query.get_noised_result(sample, state).global_state

    metrics = {k: float(v) for k, v in query.derive_metrics(state).items()}
    assert metrics == {"a/clip": 2.5, "b/0/clip": 1.0}
    assert query.adapts


def test_no_noise_moves_the_clip_out_of_its_range():
    query = AdaptiveClipSumQuery(2.0, 1.0, 1e9, 1)
    a_round = tf.function(lambda state: one_round(query, state)[:2])
    for seed in range(6):
        state, clips = query.initial_global_state(seed), []
        for _ in range(40):
            value, state = a_round(state)
            clips.append(float(state.sum_state.l2_norm_clip))
            assert np.isfinite(value).all()

        assert min(clips) >= 2.0 / 1000
        assert max(clips) <= 2.0 * 1000
        grown = np.divide(clips[1:], clips[:-1])
        assert grown.max() <= 2.0 * (1 + 1e-12)
        assert len(set(clips)) > 2  # Noise does move it.


def test_clips_reach_both_limits():
    """Control: the limits of the last test are not far from what happens."""
    high, low = bare(), bare()
    states = [high.initial_global_state(), low.initial_global_state()]
    for _ in range(12):
        states[0] = one_round(high, states[0], 1e6 * RECORDS).global_state
        states[1] = one_round(low, states[1], 1e-6 * RECORDS).global_state

    assert [float(s.sum_state.l2_norm_clip) for s in states] == [2000.0, 0.002]


def test_a_run_finds_the_scale_of_the_records():
    """Noise of the paper, 128 records of norm 7 and a clip of 0.1 at first."""
    query = AdaptiveClipSumQuery(0.1, 0.725, 2.5, 128)
    directions = np.random.default_rng(0).standard_normal([128, 5])
    directions *= 7 / np.linalg.norm(directions, axis=1, keepdims=True)
    records = tf.constant(directions, tf.float32)

    state = query.initial_global_state(2)
    for _ in range(20):
        state = one_round(query, state, records).global_state

    # One step's noise is 2.5 * 2 * 7 / 128 = 0.27; the tolerance is 6 of it.
    assert abs(float(state.sum_state.l2_norm_clip) - 7) < 6 * 0.27
