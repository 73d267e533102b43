"""Answers in units of the clip, and the noise that they state."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import (
    ErrorCorrectedQuery,
    GaussianAverageQuery,
    GaussianSumQuery,
    JointClipQuery,
    NormalizedQuery,
)
from keras_dp.noise import reproducible
from tests.query_table import ULP, answer

QUERIES = {
    "sum": functools.partial(GaussianSumQuery, 4.0, 6.0),
    "average": functools.partial(GaussianAverageQuery, 4.0, 6.0, 5.0),
    "joint": functools.partial(JointClipQuery, [2.0, 0.5], 4.0, 6.0, 5.0),
    "automatic": functools.partial(
        GaussianAverageQuery, 4.0, 6.0, 5.0, gamma=0.5
    ),
}


class TestUnitsOfTheClip:
    @pytest.mark.parametrize("name", QUERIES)
    def test_divide_the_answer_and_its_noise(self, name) -> None:
        records = [tf.constant([[3.0, 9.0]]), tf.constant([[0.1]])]
        template = [leaf[0] for leaf in records]
        with reproducible():
            plain = answer(QUERIES[name](), template, records)
            query = QUERIES[name](rescale=True)
            rescaled = answer(query, template, records)

        for one, two in zip(plain, rescaled, strict=True):
            np.testing.assert_allclose(one / 4, two, rtol=4 * ULP)
        state = query.initial_global_state()
        for noise, whole in zip(
            query.result_noise(state, rescaled),
            QUERIES[name]().result_noise(state, rescaled),
            strict=True,
        ):
            assert float(noise.scale) == pytest.approx(float(whole.scale) / 4)

    def test_reach_queries_that_correct_answers(self) -> None:
        """Errors are of the size of the noise in units of the clip."""
        inner = NormalizedQuery(
            GaussianSumQuery(4.0, 6.0, rescale=True, gamma=0.1), 3.0
        )
        query = ErrorCorrectedQuery(inner, 0.1)

        _, (noise,) = query.released(
            tf.zeros([4]), query.initial_global_state()
        )

        assert float(noise.scale) == pytest.approx(6 / 4 / 3)
