"""Seeds of the noise. A seed is used once, and then replaced.

A seed is a key of ChaCha20, 256 bits in a tensor of int64 of shape `[4]`. Seeds
come from the operating system. A seed that the caller chooses has an effect
only inside `reproducible()`, for tests: two runs with one seed would have the
same noise. No seed is ever written to a file, for two reasons: whoever knows
the seed can subtract the noise, and a restored seed would repeat the noise on
other data.

`streams` draws words and normal variables. A key of ChaCha20 is used once: for
new keys, for a draw, or for both from different words. Then it is replaced. So
somebody who learns a key learns nothing about earlier draws (fast key erasure).

Source: Bernstein (2017), "Fast-key-erasure random-number generators",
https://blog.cr.yp.to/20170723-random.html.
"""

import secrets

import numpy as np
import tensorflow as tf

from keras_dp import _check, _reproducible
from keras_dp.noise import streams


def fresh(seed: int | None) -> tf.Tensor:
    """Returns a new seed, from the operating system by default.

    Inside `reproducible()`, the result depends only on an integer `seed` >= 0.
    Anywhere else it has no effect: two runs that choose the same seed must not
    have the same noise. A `tf.function` is refused, because it would use the
    same seed in every call.
    """
    if seed is not None:
        _check.integer_at_least(0, seed=seed)
    if seed is None or not _reproducible.is_on():
        return _random(streams.LENGTH)
    sequence = np.random.SeedSequence(seed)
    state = sequence.generate_state(streams.LENGTH, np.uint64)
    return tf.constant(state.view(np.int64))


def fresh_id() -> tf.Tensor:
    """Returns a random id of 128 bits, int64 `[2]`, which is no secret."""
    return _random(2)


def _random(length: int) -> tf.Tensor:
    """Returns random bits of the operating system, int64 `[length]`."""
    if not tf.executing_eagerly():
        raise RuntimeError(
            "A seed must be made eagerly: a tf.function would keep it, and "
            "draw the same noise at every call. Call initial_global_state "
            "outside of the function and pass the state in."
        )
    words = [secrets.randbits(64) - 2**63 for _ in range(length)]
    return tf.constant(words, tf.int64)


def children(seed: int | None, count: int) -> list[int | None]:
    """Returns `count` independent arguments for `fresh`; `None`s for `None`."""
    if seed is None:
        return [None] * count
    _check.integer_at_least(0, seed=seed)
    state = np.random.SeedSequence(seed).generate_state(count, np.uint64)
    return [int(word >> np.uint64(1)) for word in state]  # Below 2^63.


def split(seed: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Returns `count` new seeds made from one, which must not be used again."""
    words = streams.words(count * streams.LENGTH, seed, streams.FOR_SEEDS)
    return tf.unstack(tf.reshape(words, [count, streams.LENGTH]))
