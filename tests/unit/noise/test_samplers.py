"""How noise is drawn from words, and distribution functions in TensorFlow."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.ledger.events.noise_families import (
    LaplaceNoise,
)
from keras_dp.noise import samplers
from tests.noise_table import STANDARD, name_of
from tests.pairwise import pairwise

each_noise = pytest.mark.parametrize("noise", STANDARD, ids=name_of)
ONE_OF_EACH = list({type(noise): noise for noise in STANDARD}.values())
SEED = tf.constant([1, 2, 3, 4], tf.int64)
SMALLEST = 2.0**-64
# Signed words: the smallest, some of every size, and the largest.
WORDS = np.array([SMALLEST, 2.0**-40, 1e-5, 0.01, 0.3, 0.5, 0.9])


def compiled(function):
    return tf.function(function, jit_compile=True)


WAYS = [lambda function: function, tf.function, compiled]


class TestSample:
    @pytest.mark.full
    @pytest.mark.parametrize(
        ("noise", "shape", "dtype"),
        [
            pytest.param(*row.values(), id="-".join(map(str, row.values())))
            for row in pairwise(
                {
                    "noise": STANDARD,
                    "shape": [(), (0,), (1,), (7,), (2, 0, 3), (3, 5)],
                    "dtype": ["float32", "float64"],
                }
            )
        ],
    )
    def test_has_the_shape_and_dtype_of_like(self, noise, shape, dtype):
        draw = samplers.sample(noise, tf.zeros(shape, dtype), SEED)

        assert draw.shape == tf.TensorShape(shape)
        assert draw.dtype == dtype
        assert np.isfinite(draw).all()

    @pytest.mark.full
    @pytest.mark.parametrize("noise", ONE_OF_EACH, ids=name_of)
    def test_takes_a_shape_that_is_known_late(self, noise):
        @tf.function(input_signature=[tf.TensorSpec([None, 3])])
        def sample(like):
            return samplers.sample(noise, like, SEED)

        found = sample(tf.zeros([5, 3]))
        assert found.shape == [5, 3]
        # Drawn in pieces, whose size is chosen before the shape is known.
        np.testing.assert_array_equal(found, sample(tf.zeros([5, 3])))
        assert len(np.unique(found)) == 15

    @pytest.mark.full
    @each_noise
    def test_is_the_same_compiled(self, noise):
        """Up to the rounding of elementary functions."""

        def sample(like):
            return samplers.sample(noise, like, SEED)

        like = tf.zeros([999], tf.float64)

        np.testing.assert_allclose(
            compiled(sample)(like), sample(like), rtol=1e-9, atol=1e-12
        )

    def test_refuses_a_family_it_cannot_draw(self):
        with pytest.raises(TypeError, match="`noise` must"):
            samplers.sample(None, tf.zeros([3]), SEED)


class TestTransforms:
    """The size of noise is where its tail has the word's probability."""

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_laplace_is_the_inverse_distribution_function(self, dtype, way):
        words = WORDS.astype(dtype)
        up, down = (
            way(samplers.laplace)(tf.constant(sign * words)).numpy()
            for sign in (1, -1)
        )

        np.testing.assert_array_equal(up, -down)
        assert (np.diff(up) < 0).all()
        # A size of up to 45, to 4 ulp; its tail falls by as much.
        ulp = np.finfo(dtype).eps
        np.testing.assert_allclose(
            2 * LaplaceNoise(1.0).cdf(-up.astype(np.float64)),
            words,
            rtol=200 * ulp,
        )

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_of_the_largest_words_are_nearly_0(self, dtype):
        values = samplers.laplace(tf.constant([1.0, -1.0], dtype))

        assert (np.abs(values) < 2 * np.finfo(dtype).eps).all()

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("df", [1.0, 2.1, 3.0, 9.0, 1e3, 1e9, 1e300])
    def test_student_t_has_the_radius_of_its_law(self, df, dtype):
        """`P(R > r) = (1 + r^2 / df)^(-df / 2)`, for the normal `df` = inf."""
        words = tf.constant(WORDS.astype(dtype))

        radius = samplers.student_t(words, tf.ones_like(words), df)

        r = radius.numpy().astype(np.float64)
        log_tail = -df / 2 * np.log1p(r / df * r)
        np.testing.assert_allclose(
            log_tail, np.log(words), rtol=20 * np.finfo(dtype).eps
        )


class TestCdf:
    X = np.r_[
        np.linspace(-40, 40, 4001), -1e280, 1e280, -1e9, 1e9, 0, -1e-9, 1e-9
    ]

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("way", "scale"),
        [(WAYS[0], 1e-20), (WAYS[0], 1e20), *((way, 0.7) for way in WAYS)],
    )
    @each_noise
    def test_is_that_of_the_family(self, noise, scale, way):
        noise = noise.scaled(scale)
        x = self.X * scale

        got = way(functools.partial(samplers.cdf, noise))(tf.constant(x))

        assert got.dtype == tf.float64
        np.testing.assert_allclose(got, noise.cdf(x), rtol=0, atol=1e-9)
