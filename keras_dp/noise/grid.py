"""Gaussian noise on a grid: answers are multiples of a power of two.

The grid follows from the noise alone: its spacing `g` is a power of two, and
the standard deviation is between `2^24` and `2^25` spacings. A sum `S` is
rounded to the integers `K = round(S / g)`, and the answer is `g (K + round(N))`
for a normal `N` of standard deviation `stddev / g`. As `K + round(N) =
round(K + N)`, the answer follows from `K + N`, the Gaussian mechanism in real
numbers. So the low bits of an answer are those of a rounded normal variable,
whatever the bits of the sum were. All that follows the rounding is exact or a
function of the answer, so nothing else of the sum shows.

Rounding moves what one record changes by less than `g` in each coordinate: by
`sqrt(d) g` at most in L2 norm, for `d` coordinates. That is 6e-5 standard
deviations for a million.

Source: Mironov (2012), "On significance of the least significant bits for
differential privacy", CCS, whose remedy rounds the answer. To round the sum and
the noise gives the same law.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_dp.noise import streams, xla

_EXPONENT = 0x7FF0000000000000  # The bits of the exponent of a float64.
# Without noise, sums of float32 stay as they are.
_LEAST_SPACING = 2.0**-149
# The largest sum in steps: with its noise it is an integer that float64 holds.
_MOST_STEPS = 2**52
# Sums of more coordinates are worth compiling to one loop.
_LEAST_COMPILED = 2**16
# Rounding takes few operations: smaller sums are done before they compile.
LEAST_COMPILED_STEPS = 2**19
# In values: 16 values of float32 are 64 bytes.
_ALIGNMENT = 16
# Joined leaves stay in the cache of a core.
_LARGEST_JOINED = 2**13


def spacing(stddev: tf.Tensor) -> tf.Tensor:
    """Returns the spacing of the grid, a power of two, scalar float64.

    Args:
        stddev: Standard deviation of the noise, scalar: 0, or at least 1e-30.

    >>> float(spacing(1.0)) == float(spacing(1.9)) == 2.0**-24
    True
    """
    bits = tf.bitcast(tf.cast(stddev, tf.float64), tf.int64)
    power = tf.bitcast(tf.bitwise.bitwise_and(bits, _EXPONENT), tf.float64)
    return tf.maximum(power * 2.0**-24, _LEAST_SPACING)


def noised(
    sums: Sequence[tf.Tensor],
    stddev: tf.Tensor,
    seed: tf.Tensor,
    unit: tf.Tensor | float = 1.0,
    divisors: Sequence[float] | None = None,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns sums with Gaussian noise on the grid, and the next seed.

    The sums are steps of the grid, of int64, or float32 or float64. The answer
    to steps is float32, and that to floats has their dtype. Each is divided by
    `unit`, and by the divisor of its leaf. The stddev is 0, or at least 1e-30.
    The seed must not be used again.
    """
    g = spacing(stddev)
    of_unit = g / tf.cast(unit, tf.float64)
    divisors = [1.0] * len(sums) if divisors is None else divisors
    factors = {each: of_unit / each for each in set(divisors)}
    joined = Joined(sums, divisors)
    totals = joined.together(sums)
    steps, following = draws(totals, stddev, seed)
    answers = [
        answer(total, noise, g, factors[divisor])
        for total, noise, divisor in zip(
            totals, steps, joined.kinds, strict=True
        )
    ]
    return joined.apart(answers), following


def draws(
    like: Sequence[tf.Tensor], stddev: tf.Tensor, seed: tf.Tensor
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns normal variables in steps of the grid, and the next seed.

    They are int32, in the shapes of `like`, whose values are not used. The
    stddev and the seed are those of `noised`.
    """
    stddev = tf.cast(stddev, tf.float64)
    steps = stddev / spacing(stddev)
    sizes, alone = list(map(streams.size_of, like)), len(like) == 1
    count = sizes[0] if alone else sum(map(_aligned, sizes))
    drawn, following = streams.rounded_normals(count, seed, steps)
    parts = []
    start: int | tf.Tensor = 0
    for leaf, size in zip(like, sizes, strict=True):
        part = drawn if alone else tf.slice(drawn, [start], [size])
        known = leaf.shape.is_fully_defined()
        shape = leaf.shape if known else tf.shape(leaf)
        parts.append(tf.reshape(part, shape))
        start += _aligned(size)
    return parts, following


def _aligned(count: int | tf.Tensor) -> int | tf.Tensor:
    # Parts that begin where memory is aligned are taken without a copy.
    return -(-count // _ALIGNMENT) * _ALIGNMENT


class Joined:
    """Joins small leaves of one dtype and kind, and takes them apart.

    So the graph of a step has the operations of an elementwise function once
    for all biases and scales. Large leaves are parts of their own. `kinds` are
    those of the parts.
    """

    def __init__(
        self, leaves: Sequence[tf.Tensor], kinds: Sequence[Any]
    ) -> None:
        self._shapes = [leaf.shape for leaf in leaves]
        groups: dict[Any, list[int]] = {}
        for place, leaf in enumerate(leaves):
            size = leaf.shape.num_elements()
            alone = size is None or size > _LARGEST_JOINED
            key = place if alone else (leaf.dtype, kinds[place])
            groups.setdefault(key, []).append(place)
        self._groups = list(groups.values())
        self.kinds = [kinds[group[0]] for group in self._groups]

    def together(self, leaves: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the parts, those that are joined with one axis."""
        return [
            leaves[group[0]]
            if len(group) == 1
            else tf.concat([_flat(leaves[i]) for i in group], axis=0)
            for group in self._groups
        ]

    def apart(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the leaves of parts, in the shapes of the leaves."""
        leaves: list[Any] = [None] * len(self._shapes)
        for group, part in zip(self._groups, parts, strict=True):
            if len(group) == 1:
                leaves[group[0]] = part
                continue
            sizes = [self._shapes[i].num_elements() for i in group]
            for i, leaf in zip(group, tf.split(part, sizes), strict=True):
                shape = self._shapes[i]
                leaves[i] = leaf if shape.rank == 1 else tf.reshape(leaf, shape)
        return leaves


def _flat(leaf: tf.Tensor) -> tf.Tensor:
    # Most small leaves are vectors, and an operation costs a trace more.
    return leaf if leaf.shape.rank == 1 else tf.reshape(leaf, [-1])


def answer(
    total: tf.Tensor, noise: tf.Tensor, g: tf.Tensor, factor: tf.Tensor
) -> tf.Tensor:
    """Returns what `with_noise` does, compiled to one loop if it is large."""
    size = total.shape.num_elements()
    if size is None or size < _LEAST_COMPILED:
        return with_noise(total, noise, g, factor)
    flat = tf.reshape(total, [size]), tf.reshape(noise, [size])
    kinds = size, total.dtype, noise.dtype
    compiled = xla.compiled(with_noise, kinds=kinds)
    return tf.reshape(compiled(*flat, g, factor), total.shape)


def with_noise(
    total: tf.Tensor, noise: tf.Tensor, g: tf.Tensor, factor: tf.Tensor
) -> tf.Tensor:
    """Returns a sum with noise, both rounded to the grid.

    The noise is in steps: what `draws` returns, or is computed of it in
    float64. `factor` is the length of a step in the answer.
    """
    if not noise.dtype.is_integer:
        noise = tf.round(noise)
    noise = tf.cast(noise, tf.float64)
    if total.dtype == tf.int64:
        # Then both, and their sum, are integers that float64 holds.
        total = tf.clip_by_value(total, -_MOST_STEPS, _MOST_STEPS)
        return tf.cast(
            (tf.cast(total, tf.float64) + noise) * factor, tf.float32
        )
    # The product with a power of two is exact. Beyond 2^53 the sum of integers
    # is rounded, which depends on nothing but their sum.
    steps = tf.round(tf.cast(total, tf.float64) * (1 / g)) + noise
    return tf.cast(steps * factor, total.dtype)


def steps(total: tf.Tensor, g: tf.Tensor) -> tf.Tensor:
    """Returns sums in steps of the grid, added up over the first axis.

    They are int64, cut off at 2^52 steps, at least 2^27 standard deviations of
    the noise. NaN counts as 0.
    """
    count, *shape = total.shape
    size = tf.TensorShape(shape).num_elements()
    if count is None or size is None or count * size < LEAST_COMPILED_STEPS:
        return _steps(total, g)
    added = xla.compiled(_steps, kinds=(size, count, total.dtype))
    return tf.reshape(added(tf.reshape(total, [count, size]), g), shape)


def _steps(total: tf.Tensor, g: tf.Tensor) -> tf.Tensor:
    # Steps are integers, so they add up without rounding (lemma 2).
    is_one = total.shape[0] == 1
    kind = tf.float32 if is_one and total.dtype == tf.float32 else tf.float64
    # The product with a power of two is exact, and faster than a quotient. What
    # is too small or large for float32 is no step, or is cut off.
    each = tf.round(tf.cast(total, kind) * tf.cast(1 / g, kind))
    # A bound may pass over NaN, and a cast make it the least integer.
    each = tf.where(tf.math.is_nan(each), tf.zeros_like(each), each)
    most = float(_MOST_STEPS // total.shape[0])  # An integer, as steps are.
    each = tf.clip_by_value(each, -most, most)
    added = tf.squeeze(each, 0) if is_one else tf.reduce_sum(each, axis=0)
    return tf.cast(added, tf.int64)


def added(one: tf.Tensor, two: tf.Tensor) -> tf.Tensor:
    """Returns the sum of two sums in steps, cut off at 2^53 steps.

    Each is at most 2^62 steps in size.
    """
    if _is_empty(one):
        return two
    size = one.shape.num_elements()
    if size is None or size < LEAST_COMPILED_STEPS:
        return _added(one, two)
    flat = tf.reshape(one, [size]), tf.reshape(two, [size])
    return tf.reshape(xla.compiled(_added, kinds=size)(*flat), one.shape)


def _is_empty(total: tf.Tensor) -> bool:
    """Returns whether a graph says that a sum is that of no records."""
    if tf.executing_eagerly():
        return False
    made = total.op
    filled = made.inputs[1] if made.type == "Fill" else total
    value = tf.get_static_value(filled)
    return value is not None and not value.any()


def _added(one: tf.Tensor, two: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(one + two, -2 * _MOST_STEPS, 2 * _MOST_STEPS)
