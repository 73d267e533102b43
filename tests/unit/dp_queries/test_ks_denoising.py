"""Denoising multiplies by a distance, and costs nothing."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_dp.dp_queries import GaussianSumQuery, NestedQuery, NoPrivacySumQuery
from keras_dp.dp_queries.corrected_queries import KSDenoisedQuery, ks_distance
from keras_dp.dp_queries.dp_query import LeafNoise
from keras_dp.ledger import GaussianNoise
from keras_dp.ledger.events.noise_families import LaplaceNoise
from tests.noise_table import STANDARD, name_of

SIZE = 1001


def compiled(function):
    return tf.function(function, jit_compile=True)


class LaplaceAnswers(GaussianSumQuery):
    """A Gaussian sum that says its noise is Laplace, in two groups."""

    def result_noise(self, global_state, value):
        return [
            LeafNoise(LaplaceNoise(1.0), global_state.stddev, str(place % 2))
            for place, _ in enumerate(tf.nest.flatten(value))
        ]


def released(query, template, seed=5, total=None):
    """Returns the release for a sum that is `total`, by default 0."""
    state = query.initial_global_state(seed)
    if total is None:
        total = query.initial_sample_state(template)
    return query.get_noised_result(total, state)


def vector(*leaves):
    return np.concatenate([np.ravel(np.float64(leaf)) for leaf in leaves])


def statistic(values, noise=GaussianNoise(1.0)):  # noqa: B008
    return stats.kstest(values, noise.cdf).statistic


class TestDistance:
    @pytest.mark.parametrize("noise", STANDARD, ids=name_of)
    def test_is_that_of_scipy(self, noise):
        values = np.random.default_rng(1).standard_cauchy(SIZE)

        for shift in (0.0, 0.1, 3.0):
            # The distribution functions are good to 1e-9 here.
            assert float(ks_distance(tf.constant(values + shift), noise)) == (
                pytest.approx(statistic(values + shift, noise), rel=0, abs=1e-9)
            )

    @pytest.mark.parametrize("values", [[0.3], [-2.0, -1.0], [1.0, 2.0, 5.0]])
    def test_is_the_supremum_of_the_definition(self, values):
        """On both sides of every jump, and far away."""
        noise, n = GaussianNoise(1.0), len(values)
        brute = max(
            abs(sum(v <= t for v in values) / n - noise.cdf(t))
            for value in values
            for t in (value, np.nextafter(value, -9), -9.0, 9.0)
        )

        got = ks_distance(tf.constant(values, tf.float64), noise)

        assert float(got) == pytest.approx(float(brute), abs=1e-15)


class TestValue:
    @pytest.mark.parametrize(
        "way",
        [
            pytest.param(lambda function: function, id="eager"),
            pytest.param(tf.function, id="tf", marks=pytest.mark.full),
            # The contract of queries asks XLA before the night.
            pytest.param(compiled, id="xla", marks=pytest.mark.nightly),
        ],
    )
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_is_the_answer_times_the_distance(self, dtype, way):
        inner = GaussianSumQuery(1.0, 3.0)
        queries = KSDenoisedQuery(inner), inner
        ways = [way(query.get_noised_result) for query in queries]
        for signal in (0.0, 0.2, 100.0):
            total = tf.fill([SIZE], tf.constant(signal, dtype))

            got, plain = (
                answer(total, query.initial_global_state(5)).value
                for answer, query in zip(ways, queries, strict=True)
            )

            expected = np.float64(plain) * statistic(np.float64(plain) / 3)
            np.testing.assert_allclose(
                got, expected, rtol=4 * np.finfo(dtype).eps, atol=1e-9
            )
            assert got.dtype == dtype

    def test_groups_have_factors_of_their_own(self):
        inner = NestedQuery(
            {"a": GaussianSumQuery(1.0, 2.0), "b": GaussianSumQuery(1.0, 5.0)}
        )
        template = {"a": [tf.zeros([50]), tf.zeros([70])], "b": tf.zeros([90])}

        got = released(KSDenoisedQuery(inner), template).value

        plain = released(inner, template).value
        for leaf, factor in [
            (lambda v: v["a"][0], statistic(vector(*plain["a"]) / 2)),
            (lambda v: v["a"][1], statistic(vector(*plain["a"]) / 2)),
            (lambda v: v["b"], statistic(vector(plain["b"]) / 5)),
        ]:
            np.testing.assert_allclose(
                leaf(got), factor * leaf(plain), rtol=1e-5
            )

    def test_groups_and_families_of_a_query_are_told_apart(self):
        inner = LaplaceAnswers(1.0, 2.0)
        template = [tf.zeros([50]), tf.zeros([60]), tf.zeros([70])]

        got = released(KSDenoisedQuery(inner), template).value

        plain = released(inner, template).value
        for places in ([0, 2], [1]):
            values = vector(*(plain[place] for place in places)) / 2
            factor = statistic(values, LaplaceNoise(1.0))
            for place in places:
                np.testing.assert_allclose(
                    got[place], factor * plain[place], rtol=1e-5
                )

    def test_no_noise_in_one_leaf_is_no_noise_in_its_vector(self):
        inner = NestedQuery(
            [GaussianSumQuery(1.0, 0.0), GaussianSumQuery(1.0, 2.0)]
        )
        template = [tf.zeros([30]), tf.zeros([30])]

        got = released(KSDenoisedQuery(inner), template).value

        plain = released(inner, template).value
        np.testing.assert_array_equal(got[0], plain[0])
        assert not np.allclose(got[1], plain[1])

    def test_an_overflow_is_not_hidden(self):
        query = KSDenoisedQuery(GaussianSumQuery(1.0, 2.0))
        total = tf.constant([np.inf, 1.0, -1.0])

        value = released(query, total, total=total).value

        assert np.isinf(value[0])
        assert np.isfinite(value[1:]).all()


class TestRefusals:
    def test_noise_that_is_not_known(self):
        query = KSDenoisedQuery(NoPrivacySumQuery())

        with pytest.raises(TypeError, match="independent noise"):
            released(query, tf.zeros([3]))

    @pytest.mark.parametrize("outer", [KSDenoisedQuery, lambda q: q])
    def test_a_second_denoising(self, outer):
        once = KSDenoisedQuery(GaussianSumQuery(1.0, 2.0))

        with pytest.raises(TypeError, match="`KSDenoisedQuery` must"):
            outer(once).result_noise(once.initial_global_state(), tf.zeros([3]))
        with pytest.raises(TypeError, match="`KSDenoisedQuery` must"):
            released(KSDenoisedQuery(once), tf.zeros([3]))
