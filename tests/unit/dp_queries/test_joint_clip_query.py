"""Joint clipping: what it bounds, and what it gains."""

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import JointClipQuery
from tests.query_table import ULP, answer

SCALES = {"small": 1.0, "large": 100.0}
TEMPLATE = {"small": tf.zeros([2]), "large": tf.zeros([2])}


def joint(clip=1.0, **options):
    return JointClipQuery(SCALES, clip, 0.0, 1.0, **options)


def batch(small, large):
    return {
        "small": tf.constant([small], tf.float32),
        "large": tf.constant([large], tf.float32),
    }


class TestWhatIsClipped:
    @pytest.mark.parametrize(
        ("gamma", "factor"), [(None, 2.5 / 5), (0.5, 2.5 / 5.5)]
    )
    def test_is_the_joint_norm_of_the_scaled_parts(self, gamma, factor) -> None:
        """Norms 3 and 4 after scaling are 5 together."""
        value = answer(
            joint(clip=2.5, gamma=gamma),
            TEMPLATE,
            batch([3.0, 0.0], [0.0, 400.0]),
        )

        expected = batch([3.0 * factor, 0.0], [0.0, 400.0 * factor])
        for group, part in value.items():
            np.testing.assert_allclose(part, expected[group][0], rtol=4 * ULP)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
    def test_a_part_that_is_not_finite_drops_the_record(self, bad) -> None:
        value = answer(joint(), TEMPLATE, batch([bad, bad], [1.0, 1.0]))

        assert not value["large"].numpy().any()

    @pytest.mark.parametrize("gamma", [None, 1e-12, 0.01, 1.0, 1e6])
    @pytest.mark.parametrize("seed", range(10))
    def test_no_record_moves_the_sum_beyond_the_clip(self, seed, gamma) -> None:
        generator = np.random.default_rng(seed)
        sizes = 10 ** generator.uniform(-30, 30, 2)
        parts = [size * generator.standard_normal(2) for size in sizes]

        value = answer(joint(gamma=gamma), TEMPLATE, batch(*parts))

        scaled = [
            value[group].numpy().astype(np.float64) / scale
            for group, scale in SCALES.items()
        ]
        assert np.linalg.norm(scaled) <= 1 + 16 * ULP


def test_scales_of_another_structure_are_refused() -> None:
    with pytest.raises(ValueError, match="`scales` must"):
        joint().initial_sample_state({"small": tf.zeros([2])})
