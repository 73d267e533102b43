"""Error correction against its definition, by quadrature and in 40 digits."""

import math

import mpmath
import numpy as np
import pytest
import tensorflow as tf
from scipy import integrate, stats

from keras_dp.dp_queries import GaussianSumQuery, NestedQuery, NoPrivacySumQuery
from keras_dp.dp_queries.corrected_queries import (
    ErrorCorrectedQuery,
    KSDenoisedQuery,
)
from keras_dp.dp_queries.discrete.encoded_sum_query import EncodedSumQuery
from keras_dp.ledger import CoordinateBounds
from keras_dp.ledger.events.noise_families import LaplaceNoise


def corrected(values, stddev=1.0, threshold=1.0, dtype=tf.float32, **arguments):
    """Returns what released values become under noise of `stddev`."""

    class Released(GaussianSumQuery):
        """Releases the sum as it is, and says that it has noise."""

        def get_noised_result(self, sample_state, global_state):
            result = super().get_noised_result(sample_state, global_state)
            return result._replace(value=sample_state)

    query = ErrorCorrectedQuery(Released(9.0, stddev), threshold, **arguments)
    state = query.initial_global_state(0)
    return query.get_noised_result(tf.constant(values, dtype), state).value


def log_likelihoods(values, stddev, threshold):
    query = ErrorCorrectedQuery(GaussianSumQuery(1.0, 1.0), threshold)
    logs = query.log_likelihoods(
        tf.constant(values, tf.float64), tf.constant(stddev, tf.float64)
    )
    return [log.numpy() for log in logs]


class TestLikelihoods:
    @pytest.mark.parametrize("threshold", [0.1, 1.0, 5.0])
    def test_are_integrals_over_the_prior_within_a_hypothesis(self, threshold):
        stddev = 1.3
        ys = np.linspace(-9, 12, 22)
        down, stop, up = log_likelihoods(ys, stddev, threshold)
        for i, y in enumerate(ys):

            def noised(x, density, y=y):
                return density * stats.norm.pdf(y, x, stddev)

            inside, _ = integrate.quad(
                lambda x: noised(x, 1 / (2 * threshold)),
                -threshold,
                threshold,
                epsabs=0,
                epsrel=1e-10,
            )
            # Noise of 14 standard deviations is beyond the floats here.
            above, _ = integrate.quad(
                lambda x: noised(
                    x, math.exp(-(x - threshold) / threshold) / threshold
                ),
                threshold,
                max(y, threshold) + 14 * stddev,
                points=[max(y, threshold), max(y, threshold) + stddev],
                epsabs=0,
                epsrel=1e-10,
                limit=400,
            )
            assert stop[i] == pytest.approx(math.log(inside), abs=1e-9)
            assert up[i] == pytest.approx(math.log(above), abs=1e-9)
        mirrored = log_likelihoods(-ys, stddev, threshold)
        np.testing.assert_array_equal(down, mirrored[2])
        np.testing.assert_array_equal(stop, mirrored[1])

    @pytest.mark.parametrize("ratio", [1e-5, 1e-2, 1.0, 1e2, 1e4])
    def test_keep_their_digits_far_out(self, ratio):
        """Against 40 digits, where exponentials have long been 0."""
        ys = [0.0, 1e-3, 0.7, 1.0, 1.3, 3.0, 20.0, 1e3, 1e6]
        ys = [y * s for y in ys for s in (-1.0, 1.0)] + [ratio, -ratio]
        _, stop, up = log_likelihoods(ys, 1.0, ratio)
        with mpmath.workdps(40):
            # Logarithms of erfc, which mpmath has for any argument.
            nu = tau = mpmath.mpf(ratio)
            for i, y in enumerate(map(mpmath.mpf, ys)):
                a = (abs(y) - nu) / mpmath.sqrt(2)
                b = (abs(y) + nu) / mpmath.sqrt(2)
                with mpmath.workdps(80):
                    inside = mpmath.log(
                        (mpmath.erfc(a) - mpmath.erfc(b)) / 4 / nu
                    )
                r = 1 / tau
                above = (
                    r * r / 2
                    - (y - nu) * r
                    + mpmath.log(
                        mpmath.erfc((r - y + nu) / mpmath.sqrt(2)) / 2 / tau
                    )
                )
                for got, exact in ((stop[i], inside), (up[i], above)):
                    error = abs(mpmath.mpf(got) - exact)
                    assert error <= 1e-9 + 1e-14 * abs(exact), (y, got, exact)


class TestDecisions:
    @pytest.mark.parametrize("ratio", [1e-5, 0.01, 0.5, 1.0, 3.0])
    def test_are_for_the_likeliest_hypothesis(self, ratio):
        values = np.linspace(-9, 9, 1801)
        likelihoods = log_likelihoods(values, 1.0, ratio)

        got = corrected(values, threshold=ratio, dtype=tf.float64).numpy()

        down_stop_up = ratio * (np.argmax(likelihoods, axis=0) - 1)
        np.testing.assert_array_equal(got, down_stop_up)

    def test_are_up_stop_or_down_in_the_unit_of_the_values(self):
        values = np.linspace(-30, 30, 601)

        got = corrected(values, stddev=2.0, threshold=3.0).numpy()

        assert set(got.tolist()) == {-3.0, 0.0, 3.0}
        assert (np.diff(got) >= 0).all()
        np.testing.assert_array_equal(got, -got[::-1])

    def test_without_noise_are_by_the_value_itself(self):
        values = [2.0, 1.0, 0.5, -1.0, -1.5, math.nan]

        got = corrected(values, stddev=0.0).numpy().tolist()

        assert got == [1.0, 0.0, 0.0, 0.0, -1.0, 0.0]

    @pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
    def test_of_what_is_not_finite_are_as_the_table_says(self, dtype):
        values = [math.inf, -math.inf, math.nan, dtype.max, dtype.min]

        got = corrected(values, dtype=dtype).numpy().tolist()

        assert got == [1.0, -1.0, 0.0, 1.0, -1.0]


class TestTheNoise:
    def test_is_that_of_each_leaf(self):
        query = ErrorCorrectedQuery(
            NestedQuery([GaussianSumQuery(1.0, 0.1), GaussianSumQuery(1, 5.0)]),
            threshold=1.0,
        )
        state = query.initial_global_state(0)
        sample = [tf.constant(np.linspace(-8, 8, 101), tf.float32)] * 2

        got = query.get_noised_result(sample, state).value

        released = query.query.get_noised_result(sample, state).value
        for own, value, stddev in zip(got, released, (0.1, 5.0), strict=True):
            np.testing.assert_array_equal(own, corrected(value, stddev))

    @pytest.mark.parametrize(
        "query",
        [
            NoPrivacySumQuery(),
            EncodedSumQuery(
                CoordinateBounds.from_vectors([[1.0, 1.0]]), LaplaceNoise(1.0)
            ),
            KSDenoisedQuery(GaussianSumQuery(1.0, 1.0)),
            ErrorCorrectedQuery(GaussianSumQuery(1.0, 1.0), 1.0),
            NestedQuery([GaussianSumQuery(1.0, 1.0), NoPrivacySumQuery()]),
        ],
        ids=lambda query: type(query).__name__,
    )
    def test_of_another_kind_is_refused_at_release(self, query):
        query = ErrorCorrectedQuery(query, 1.0)
        state = query.initial_global_state(0)
        template = tf.zeros([2])
        if isinstance(query.query, NestedQuery):
            template = [template, template]
        sample = query.initial_sample_state(template)

        with pytest.raises(TypeError, match="noise"):
            query.get_noised_result(sample, state)


class TestPostProcessing:
    def test_no_longer_says_what_the_noise_is(self):
        query = ErrorCorrectedQuery(GaussianSumQuery(1.0, 1.0), 1.0)

        with pytest.raises(TypeError, match="independent noise"):
            query.result_noise(query.initial_global_state(), tf.zeros([2]))
