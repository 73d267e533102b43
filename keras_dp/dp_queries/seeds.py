"""Where the randomness of queries comes from: values, split on every use.

A seed is an int64 tensor `[2]`. Seeds come from the operating system unless a
caller gives one, and are never written to a file: whoever knows the seed can
subtract the noise, and a restored seed would repeat it on other data.
"""

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
    """Returns Gaussian noise of the shape and dtype of `like`."""
    draw = tf.random.stateless_normal(
        tf.shape(like), seed, dtype=like.dtype, alg=GENERATOR
    )
    return draw * tf.cast(stddev, like.dtype)
