"""A sampler of the discrete Gaussian distribution.

Its mass on an integer `k` is proportional to `exp(-k^2 / (2 scale^2))`. Draws
are proposals from the discrete Laplace distribution of parameter
`t = floor(scale) + 1`, whose mass is proportional to `exp(-|k| / t)`, accepted
with probability `exp(-(|k| - scale^2 / t)^2 / (2 scale^2))`. Every coordinate
proposes in every step, until each has been accepted once. So no coordinate
depends on the others, and the time that a draw takes says little more than the
number of coordinates.

Source: Canonne, Kamath, Steinke (2020), arXiv:2004.00010v4, Algorithms 2 and 3.
We differ in Bernoulli and geometric variables. Ours are float64 functions of
64-bit uniform variables, not exact rational arithmetic. So each probability is
right to a relative 1e-15 or so, and values with a probability below 2^-63 are
never proposed.
"""

import tensorflow as tf

from keras_dp.noise import seeds

# Proposals are at most 44 times as large, exact in float64 and in int64.
LARGEST_SCALE = 2.0**40


def sample(
    scale: tf.Tensor | float,
    shape: tf.Tensor | list[int],
    seed: tf.Tensor,
    dtype: tf.DType = tf.int64,
) -> tf.Tensor:
    """Returns independent draws from the discrete Gaussian distribution.

    Args:
        scale: The parameter of the distribution, a scalar in [0, 2^40], which
            is not checked. The standard deviation is at most `scale`. At 0 all
            draws are 0.
        shape: The shape of the draws.
        seed: A seed from `seeds.fresh`, which must not be used again.
        dtype: int32 or int64. Draws that do not fit wrap around.

    >>> draws = sample(3.0, [10_000], seeds.fresh(None))
    >>> print(draws.dtype.name, bool(tf.reduce_max(tf.abs(draws)) > 6))
    int64 True
    """
    scale = tf.cast(scale, tf.float64)
    zeros = tf.zeros(shape, tf.int64)

    def propose(
        draws: tf.Tensor, is_open: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        seed, one, two = seeds.split(seed, 3)
        proposal, is_one = _discrete_laplace(scale, zeros, one)
        accepted = is_one & _is_accepted(scale, proposal, two)
        draws = tf.where(is_open & accepted, proposal, draws)
        return draws, is_open & ~accepted, seed

    draws, _, _ = tf.while_loop(
        lambda _, is_open, __: tf.reduce_any(is_open),
        propose,
        (zeros, tf.fill(tf.shape(zeros), scale > 0), seed),
        parallel_iterations=1,
    )
    return tf.cast(draws, dtype)


def _discrete_laplace(
    scale: tf.Tensor, like: tf.Tensor, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns signed geometric variables, and which of them are valid.

    Minus zero is not valid: otherwise zero would have twice its mass.
    """
    words = seeds.words(like, seed)
    # Uniform in (0, 1], never 0, and as precise near 0 as float64 can be.
    uniform = tf.abs((tf.cast(words, tf.float64) + 0.5) * 2.0**-63)
    size = tf.floor(-tf.math.log(uniform) * (tf.floor(scale) + 1))
    size = tf.cast(size, tf.int64)
    is_negative = words < 0
    return tf.where(is_negative, -size, size), ~(is_negative & (size == 0))


def _is_accepted(
    scale: tf.Tensor, proposal: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    size = tf.cast(tf.abs(proposal), tf.float64)
    # The distance is in units of the scale, whose square could underflow.
    distance = size / scale - scale / (tf.floor(scale) + 1)
    words = tf.cast(seeds.words(proposal, seed), tf.float64)
    uniform = tf.abs((words + 0.5) * 2.0**-63)
    return tf.math.log(uniform) < -0.5 * tf.square(distance)
