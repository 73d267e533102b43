"""Joint clipping: what it bounds, and what it gains."""

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import (
    JointClipQuery,
)
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


class TestArguments:
    def test_scales_of_another_structure_are_refused(self) -> None:
        with pytest.raises(ValueError, match="`scales` must"):
            query().initial_sample_state({"small": tf.zeros([2])})
