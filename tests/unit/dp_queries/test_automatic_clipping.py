"""Records that get nearly one norm, and answers in units of the clip."""

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
from tests.query_table import ULP, accumulated, answer, total

TINY = 2.0**-126  # The smallest normal float32; less may be flushed to 0.
# Norms that are 0, subnormal, ordinary, nearly infinite and infinite.
SIZES = [0.0, 2.0**-149, 2.0**-126, 1e-25, 1e-19, 1e-12, 1e-3, 1.0, 1e19, 3e38]
BAD = [np.inf, -np.inf, np.nan]
GAMMAS = [1e-12, 0.01, 1.0, 1e6]


def contribution(query, record, *, jit_compile):
    def sample(record):
        return accumulated(
            query,
            query.initial_global_state(0),
            record,
            tf.nest.map_structure(lambda leaf: leaf[tf.newaxis], record),
        )

    if jit_compile:
        sample = compiled(query, sample)
    got = sample(record)
    return np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(got)])


COMPILED = {}


def compiled(query, sample):
    """Returns one function for each query, not for each record."""
    if query not in COMPILED:
        COMPILED[query] = tf.function(sample, jit_compile=True, autograph=False)
    return COMPILED[query]


class TestTheFactor:
    def test_is_that_of_the_definition_for_each_record(self) -> None:
        records = np.random.default_rng(0).standard_normal([20, 6])
        records *= 10 ** np.random.default_rng(1).uniform(-3, 3, [20, 1])
        records = records.astype(np.float32)

        for clip, gamma in [(1.0, 0.01), (3e-4, 2.0), (500.0, 0.7)]:
            want = sum(
                clip / (np.linalg.norm(record) + gamma) * record
                for record in records.astype(np.float64)
            )
            query = GaussianAverageQuery(clip, 0.0, 1.0, gamma=gamma)
            got = total(query, tf.constant(records))
            np.testing.assert_allclose(got, want, atol=20 * ULP * clip)

    def test_is_that_of_the_joint_norm_of_the_scaled_record(self) -> None:
        scales = {"a": 2.0, "b": 100.0}
        query = JointClipQuery(scales, 3.0, 0.0, 1.0, gamma=0.5)
        records = {"a": tf.constant([[6.0]]), "b": tf.constant([[400.0]])}

        got = total(query, records)  # Scaled: 3 and 4, of norm 5.

        assert float(got["a"][0]) == pytest.approx(6.0 * 3 / 5.5, rel=1e-6)
        assert float(got["b"][0]) == pytest.approx(400.0 * 3 / 5.5, rel=1e-6)


class TestTheBound:
    """A record adds at most the clip, whatever the record is."""

    @pytest.mark.parametrize("jit_compile", [False, True])
    @pytest.mark.parametrize("gamma", GAMMAS)
    @pytest.mark.parametrize("clip", [0.0, 1e-12, 1.0, 1e6])
    def test_holds_for_every_size(self, clip, gamma, jit_compile) -> None:
        query = GaussianSumQuery(clip, 0.0, gamma=gamma)
        for sizes in ([size] * 100 for size in SIZES):
            record = tf.constant(sizes, tf.float32)
            got = contribution(query, record, jit_compile=jit_compile)
            norm = np.linalg.norm(got.astype(np.float64))
            assert norm <= clip * (1 + 8 * ULP) + TINY, sizes[0]

    @pytest.mark.parametrize("jit_compile", [False, True])
    @pytest.mark.parametrize("gamma", GAMMAS)
    def test_is_reached_by_long_records(self, gamma, jit_compile) -> None:
        """So a smaller bound in the ledger would be wrong."""
        query = GaussianSumQuery(2.0, 0.0, gamma=gamma)
        record = tf.fill([7], tf.constant(1e12, tf.float32))

        got = contribution(query, record, jit_compile=jit_compile)

        assert np.linalg.norm(got) == pytest.approx(2.0, rel=1e-5)

    @pytest.mark.parametrize("jit_compile", [False, True])
    @pytest.mark.parametrize("bad", BAD)
    def test_is_0_for_what_is_not_finite(self, bad, jit_compile) -> None:
        query = GaussianSumQuery(1.0, 0.0, gamma=0.01)
        record = tf.constant([bad, 1.0, 0.0], tf.float32)

        got = contribution(query, record, jit_compile=jit_compile)

        np.testing.assert_array_equal(got, 0)

    @pytest.mark.parametrize("gamma", GAMMAS)
    @pytest.mark.parametrize("seed", range(10))
    def test_holds_for_scaled_records(self, gamma, seed) -> None:
        scales = {"small": 1e-3, "large": 1e3}
        generator = np.random.default_rng(seed)
        sizes = 10 ** generator.uniform(-30, 30, 2)
        record = {
            group: tf.constant(size * generator.standard_normal(3), tf.float32)
            for group, size in zip(scales, sizes, strict=True)
        }
        query = JointClipQuery(scales, 1.5, 0.0, 1.0, gamma=gamma)

        got = contribution(query, record, jit_compile=False)

        # The state of a sample is the sum of scaled records.
        norm = np.linalg.norm(got.astype(np.float64))
        assert norm <= 1.5 * (1 + 16 * ULP)


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
