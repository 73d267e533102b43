"""Joint clipping: what it bounds, and what it gains."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_dp import accountants
from keras_dp.dp_queries import (
    GaussianAverageQuery,
    JointClipQuery,
    NestedQuery,
)
from keras_dp.ledger import PoissonSampling, Round
from tests.query_table import ULP, answer

SCALES = {"small": 1.0, "large": 100.0}


def record(small, large):
    return {"small": tf.constant([small]), "large": tf.constant([large])}


def stacked(*records):
    return tf.nest.map_structure(lambda *rows: tf.stack(rows), *records)


def query(clip=1.0, stddev=0.0, denominator=1.0, scales=SCALES):
    return JointClipQuery(scales, clip, stddev, denominator)


TEMPLATE = {"small": tf.zeros([2]), "large": tf.zeros([2])}


class TestWhatIsClipped:
    def test_is_the_joint_norm_of_the_scaled_parts(self) -> None:
        """Norms 3 and 4 after scaling are 5 together."""
        value = answer(
            query(clip=2.5),
            {"small": tf.zeros([1]), "large": tf.zeros([1])},
            stacked(record(3.0, 400.0)),
        )

        assert value["small"].numpy().tolist() == [1.5]
        assert value["large"].numpy().tolist() == [200.0]

    def test_records_within_the_clip_pass(self) -> None:
        value = answer(query(clip=2.0), TEMPLATE, _batch([1.0, 1.0], [0, 100]))

        np.testing.assert_allclose(value["small"], [1, 1], rtol=4 * ULP)
        np.testing.assert_allclose(value["large"], [0, 100], rtol=4 * ULP)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
    def test_a_part_that_is_not_finite_drops_the_whole_record(
        self, bad
    ) -> None:
        value = answer(query(), TEMPLATE, _batch([bad, bad], [1.0, 1.0]))

        assert not value["large"].numpy().any()

    @pytest.mark.parametrize("seed", range(20))
    def test_no_record_moves_the_scaled_sum_by_more_than_the_clip(
        self, seed
    ) -> None:
        generator = np.random.default_rng(seed)
        sizes = 10 ** generator.uniform(-12, 12, 2)
        parts = [size * generator.standard_normal(2) for size in sizes]

        value = answer(query(), TEMPLATE, _batch(*parts))

        scaled = [
            value[group].numpy().astype(np.float64) / scale
            for group, scale in SCALES.items()
        ]
        assert np.linalg.norm(scaled) <= 1 * (1 + 8 * ULP)


def _batch(small, large):
    return {
        "small": tf.constant([small], tf.float32),
        "large": tf.constant([large], tf.float32),
    }


class TestThePapersExample:
    """Two vectors of very different scale, one of which is always zero.

    Records are (v, 0) with |v| <= 1 or (0, w) with |w| <= 100, and noise of 2
    on the first and 200 on the second can be tolerated.
    """

    RECORDS = (record(1.0, 0.0), record(0.0, 100.0))

    def epsilon(self, query) -> float:
        event = query.planned_event(query.initial_global_state())
        round_ = Round(PoissonSampling(0.01), query.ledger_events(event))
        return accountants.RDP().epsilon([(round_, 1000)], delta=1e-6)

    def noise(self, query):
        state = query.initial_global_state()
        laws = query.result_noise(state, record(0.0, 0.0))
        return [float(law.scale) for law in laws]  # "large", then "small".

    def test_joint_clipping_changes_no_record(self) -> None:
        for one in self.RECORDS:
            value = answer(query(), one, stacked(one))

            tf.nest.map_structure(
                np.testing.assert_array_equal, value, dict(one)
            )

    def test_clipping_apart_costs_more_for_the_same_noise(self) -> None:
        joint = query(stddev=2.0)
        apart = NestedQuery(
            {
                "small": GaussianAverageQuery(1.0, 2.0, 1.0),
                "large": GaussianAverageQuery(100.0, 200.0, 1.0),
            }
        )

        assert self.noise(joint) == self.noise(apart) == [200.0, 2.0]
        assert self.epsilon(apart) > 1.5 * self.epsilon(joint)

    def test_clipping_as_one_vector_drowns_the_small_one(self) -> None:
        joint = query(stddev=2.0)
        flat = NestedQuery(GaussianAverageQuery(100.0, 200.0, 1.0))

        assert self.epsilon(flat) == self.epsilon(joint)
        assert self.noise(flat) == [200.0, 200.0]

    def test_an_equal_share_of_the_clip_would_cut_every_record(self) -> None:
        """What clipping apart at the same cost would need."""
        apart = NestedQuery(
            {
                "small": GaussianAverageQuery(0.5**0.5, 2.0, 1.0),
                "large": GaussianAverageQuery(100 * 0.5**0.5, 200.0, 1.0),
            }
        )

        assert self.epsilon(apart) == pytest.approx(
            self.epsilon(query(stddev=2.0)), rel=1e-9
        )
        kept = answer(apart, self.RECORDS[0], stacked(self.RECORDS[0]))
        assert abs(float(kept["small"][0])) < 20  # Noise of 2 on 0.71.


class TestItsNoise:
    SAMPLES = 20_000
    FALSE_ALARM = 1e-6  # Chance that a correct query fails, were seeds free.

    def p_value(self, group, stddev) -> float:
        template = {
            name: tf.zeros([self.SAMPLES]) for name in ("small", "large")
        }
        empty = tf.nest.map_structure(
            lambda leaf: leaf[tf.newaxis][:0], template
        )
        value = answer(query(stddev=2.0, denominator=4.0), template, empty)
        law = stats.norm(scale=stddev)
        return float(stats.kstest(value[group], law.cdf).pvalue)

    @pytest.mark.parametrize("group", ["small", "large"])
    def test_is_proportional_to_the_scale(self, group) -> None:
        stddev = SCALES[group] * 2.0 / 4.0

        assert self.p_value(group, stddev) > self.FALSE_ALARM
        assert self.p_value(group, 1.1 * stddev) < self.FALSE_ALARM  # Control.


class TestArguments:
    def test_scales_of_another_structure_are_refused(self) -> None:
        with pytest.raises(ValueError, match="`scales` must"):
            query().initial_sample_state({"small": tf.zeros([2])})
