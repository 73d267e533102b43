"""Where the randomness of queries comes from: values, split on every use.

A seed is an int64 tensor `[2]`. Seeds come from the operating system unless a
caller gives one, and are never written to a file: whoever knows the seed can
subtract the noise, and a restored seed would repeat it on other data.
"""

import math
import secrets

import numpy as np
import tensorflow as tf

from keras_dp import _check

# Named, because `auto_select` is far slower under XLA on CPU.
GENERATOR = "philox"


def fresh(seed: int | None) -> tf.Tensor:
    """Returns a seed `[2]` of int64, from the operating system if `None`."""
    if seed is None:
        words = [secrets.randbits(64) - 2**63 for _ in range(2)]
        return tf.constant(words, tf.int64)
    _check.integer_at_least(0, seed=seed)
    state = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    return tf.constant(state.view(np.int64))


def children(seed: int | None, count: int) -> list[int | None]:
    """Returns `count` independent arguments for `fresh`, `None` from `None`."""
    if seed is None:
        return [None] * count
    _check.integer_at_least(0, seed=seed)
    state = np.random.SeedSequence(seed).generate_state(count, np.uint64)
    return [int(word >> np.uint64(1)) for word in state]  # Below 2^63.


def split(seed: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Returns `count` new seeds; the argument must not be used again."""
    return tf.unstack(tf.random.split(seed, num=count, alg=GENERATOR))


def normal(like: tf.Tensor, seed: tf.Tensor, stddev: tf.Tensor) -> tf.Tensor:
    """Returns Gaussian noise of the shape and dtype of `like`.

    Up to 9.4 standard deviations. TensorFlow's normal variables stop at 5.7:
    beyond, an accountant would count on noise that is never drawn.

    Args:
        like: float32 or float64.
        seed: Shape `[2]`, int64; must not be used again.
        stddev: Scalar, >= 0.
    """
    count = like.shape.num_elements()
    count = tf.size(like) if count is None else count
    half = tf.zeros([(count + 1) // 2], like.dtype)
    one, two = split(seed, 2)
    pairs = gaussian(signed_uniform(half, one), signed_uniform(half, two))
    draw = tf.reshape(pairs[:count], tf.shape(like))
    return draw * tf.cast(stddev, like.dtype)


def gaussian(u: tf.Tensor, angle: tf.Tensor) -> tf.Tensor:
    """Returns two normal variables each from two signed uniform ones.

    Source: Box and Muller (1958), "A note on the generation of random normal
    deviates", Annals of Mathematical Statistics 29.
    """
    size = tf.sqrt(-2 * tf.math.log(tf.abs(u)))
    angle = math.pi * angle
    return tf.concat([size * tf.cos(angle), size * tf.sin(angle)], axis=0)


def signed_uniform(like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns uniform variables in [-1, 1], never 0, symmetric about it.

    Floats keep all their digits near 0, where the noise is large.
    """
    words = tf.random.stateless_uniform(
        tf.shape(like),
        seed,
        minval=None,
        maxval=None,
        dtype=tf.int64,
        alg=GENERATOR,
    )
    half = tf.constant(0.5, like.dtype)
    return (tf.cast(words, like.dtype) + half) * 2.0**-63
