"""Seeds of the noise: values that are split on every use, and replaced.

A seed is a tensor of int64. Its shape names its generator: `[4]` is a key of
ChaCha20, the default, and `[2]` a seed of TensorFlow's Philox, which is not
cryptographic. Seeds come from the operating system; a seed that the caller
chooses counts only inside `reproducible()`, for tests, so that a second run
with it has other noise. No seed is ever written to a file: whoever knows the
seed can subtract the noise, and a restored seed would repeat it on other data.

`streams` draws words and normal variables. A key of ChaCha20 is used once, for
new keys, a draw, or both from different words, and then replaced: whoever
learns a key learns nothing about earlier draws (fast key erasure).

Source: Bernstein (2017), "Fast-key-erasure random-number generators",
https://blog.cr.yp.to/20170723-random.html.
"""

import contextlib
import contextvars
import secrets
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_dp import _check, _reproducible
from keras_dp.noise import streams

DEFAULT = streams.CHACHA20

# A number of values; 16 of float32 are 64 bytes.
_ALIGNMENT = 16

_generator: contextvars.ContextVar[str] = contextvars.ContextVar(
    "generator", default=DEFAULT
)


@contextlib.contextmanager
def drawing_with(generator: str) -> Iterator[None]:
    """Makes `fresh` return seeds of a generator, "chacha20" or "philox".

    >>> with drawing_with("philox"):
    ...     fresh(None).shape
    TensorShape([2])
    """
    if generator not in streams.LENGTHS:
        raise ValueError(
            f"`generator` must be one of {sorted(streams.LENGTHS)!r}. "
            f"Received: generator={generator!r}."
        )
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


def fresh(seed: int | None) -> tf.Tensor:
    """Returns a seed of int64, from the operating system by default.

    Args:
        seed: Inside `reproducible()` the only thing that the result depends
            on. Anywhere else it has no effect: two runs that choose one seed
            must not have the same noise.

    Raises:
        RuntimeError: One from the operating system is asked for in a
            `tf.function`, which would keep it and draw the same at every call.
    """
    length = streams.LENGTHS[_generator.get()]
    if seed is not None:
        _check.integer_at_least(0, seed=seed)
    if seed is None or not _reproducible.is_on():
        _check_eager()
        words = [secrets.randbits(64) - 2**63 for _ in range(length)]
        return tf.constant(words, tf.int64)
    state = np.random.SeedSequence(seed).generate_state(length, np.uint64)
    return tf.constant(state.view(np.int64))


def fresh_id() -> tf.Tensor:
    """Returns 128 random bits as int64 `[2]`, which are no secret."""
    _check_eager()
    words = [secrets.randbits(64) - 2**63 for _ in range(2)]
    return tf.constant(words, tf.int64)


def _check_eager() -> None:
    if not tf.executing_eagerly():
        raise RuntimeError(
            "A seed must be made eagerly: a tf.function would keep it, and "
            "draw the same noise at every call. Call initial_global_state "
            "outside of the function and pass the state in."
        )


def children(seed: int | None, count: int) -> list[int | None]:
    """Returns `count` independent arguments for `fresh`, `None` from `None`."""
    if seed is None:
        return [None] * count
    _check.integer_at_least(0, seed=seed)
    state = np.random.SeedSequence(seed).generate_state(count, np.uint64)
    return [int(word >> np.uint64(1)) for word in state]  # Below 2^63.


def split(seed: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Returns `count` new seeds; the argument must not be used again."""
    generator = streams.generator_of(seed)
    if generator == streams.PHILOX:
        return tf.unstack(tf.random.split(seed, num=count, alg=streams.PHILOX))
    length = streams.LENGTHS[generator]
    words = streams.words(count * length, seed, streams.FOR_SEEDS)
    return tf.unstack(tf.reshape(words, [count, length]))


def normal(like: tf.Tensor, seed: tf.Tensor, stddev: tf.Tensor) -> tf.Tensor:
    """Returns Gaussian noise of the shape and dtype of `like`.

    Args:
        like: float32 or float64.
        seed: See `fresh`; must not be used again.
        stddev: Scalar, >= 0.
    """
    (noise,) = normals([like], seed, stddev)
    return noise


def normals(
    leaves: Sequence[tf.Tensor], seed: tf.Tensor, stddev: tf.Tensor
) -> list[tf.Tensor]:
    """Returns independent Gaussian noise for each leaf, all drawn at once.

    Up to 9.49 standard deviations; see `box_muller`. TensorFlow's normal
    variables stop at 5.7: beyond, an accountant would count on noise that is
    never drawn.

    Args:
        leaves: float32 or float64, of any shapes.
        seed: See `fresh`; must not be used again.
        stddev: Scalar, >= 0, of the noise on every coordinate.

    >>> like = [tf.zeros([2, 3]), tf.zeros([5])]
    >>> one, two = normals(like, fresh(None), 4.0)
    >>> one.shape, two.shape
    (TensorShape([2, 3]), TensorShape([5]))
    """
    kinds = list(dict.fromkeys(leaf.dtype for leaf in leaves))
    noise: list[tf.Tensor] = list(leaves)
    own = [seed] if len(kinds) == 1 else split(seed, len(kinds))
    for kind, mine in zip(kinds, own, strict=True):
        places = [i for i, leaf in enumerate(leaves) if leaf.dtype == kind]
        same = [leaves[i] for i in places]
        drawn = streams.normals(_space(same), mine, tf.cast(stddev, kind))
        for i, part in zip(places, _parts(drawn, same), strict=True):
            noise[i] = part
    return noise


def normals_and_seed(
    leaves: Sequence[tf.Tensor], seed: tf.Tensor, stddev: tf.Tensor
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns Gaussian noise as `normals` does, and the seed of the next draw.

    Drawing both at once takes one call of a kernel, where it can be done.

    Args:
        leaves: See `normals`.
        seed: See `fresh`; must not be used again.
        stddev: See `normals`.
    """
    kinds = {leaf.dtype for leaf in leaves}
    if streams.generator_of(seed) == streams.CHACHA20 and kinds == {tf.float32}:
        drawn, following = streams.normals_and_seed(
            _space(leaves), seed, tf.cast(stddev, tf.float32)
        )
        return _parts(drawn, leaves), following
    following, own = split(seed, 2)
    return normals(leaves, own, stddev), following


def _space(leaves: Sequence[tf.Tensor]) -> int | tf.Tensor:
    """Returns how many values are drawn for leaves."""
    return sum(_aligned(_size(leaf)) for leaf in leaves)


def _aligned(count: int | tf.Tensor) -> int | tf.Tensor:
    # Parts that begin where memory is aligned are taken without a copy.
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def _parts(drawn: tf.Tensor, leaves: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns drawn values in the shapes of leaves."""
    parts = []
    start: int | tf.Tensor = 0
    for leaf in leaves:
        count = _size(leaf)
        known = leaf.shape.is_fully_defined()
        shape = leaf.shape if known else tf.shape(leaf)
        parts.append(tf.reshape(drawn[start : start + count], shape))
        start += _aligned(count)
    return parts


def words(like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns uniform int64 of the shape of `like`, of all 64 bits."""
    return tf.reshape(streams.words(_size(like), seed), tf.shape(like))


def signed_uniform(like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns uniform variables in [-1, 1], never 0, symmetric about it.

    Floats keep all their digits near 0, where the noise is large.
    """
    half = tf.constant(0.5, like.dtype)
    return (tf.cast(words(like, seed), like.dtype) + half) * 2.0**-63


def _size(like: tf.Tensor) -> int | tf.Tensor:
    count = like.shape.num_elements()
    return tf.size(like) if count is None else count
