"""Normal variables from random words, accurate far into the tails.

Four words of 32 bits make two normal variables. Two of the words are a number
`m` of 64 bits, which gives a probability `v = (m + 1/2) / 2^64` and a radius
`r = sqrt(-2 log v)`. The two others choose one of `2^64` equidistant angles,
none of which is on an axis.

Guarantee: neither `v` nor `1 - v` loses digits, so variables are right near 0
and in the tails alike; lemma 9 of docs/finite_precision.md bounds their error.
They are finite, never 0, and as often negative as positive. None is larger than
9.5 in size; those in the tail beyond are made by `refined`.

Source: Box and Muller (1958), "A note on the generation of random normal
deviates", Annals of Mathematical Statistics 29.

Where a float64 cannot decide how a variable is rounded, `refined` does, from
128 bits of radius and of angle, in integers.

A normal variable `x` of standard deviation `s` is at least `h` in size if

    s^2 (1 + cos(w)) (-log(v)) >= h^2,

for a uniform `v` in (0, 1) and twice the angle of Box and Muller, `w`, or
`w + pi` for the sine. So one comparison rounds `x`, with the half-integer next
to it. Both sides are computed in fixed point, exactly but for what is cut below
`2^-211`.

A *number* is a tensor `[..., 13]` of float64: the digits of the number in base
`2^24`, from the last on. Ten digits follow the point. Digits are integers of
either sign. They only meet in sums and products of integers below `2^53`. So
every order of operations, fused or not, gives the same.

Source: our own proofs, in docs/finite_precision.md, section "The rounded
normal"; definitions and lemmas are numbered as there.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_dp.noise.xla import Arithmetic, Lanes

WORDS_OF_PAIR = 4

_HALF_ULP = 2.0**-65  # Puts `v` between its neighbours.
# The bits of 1 / sqrt(2) as float32, the smallest mantissa here.
_BITS_OF_LEAST_MANTISSA = 0x3F3504F3
_BITS_OF_ONE = 0x3F800000
_EXPONENT_BIAS = 127.0
_MANTISSA_BITS = 23
# In float64: log(1 + x) = 2 artanh(s) for s = x / (x + 2), |s| < 0.172, and
# the series of Taylor for an eighth of a turn. All are cut below 1e-16.
# Bounds of errors: lemma 9 of docs/finite_precision.md.
_OF_ROUNDING = 2.0**-49
_OF_NEXT_BITS = 2.0**-51
_OF_NEXT_BITS_BY_POWER = 2.0**-63
_BITS_OF_NEAR_ONE = 7  # The high 25 bits of `v` are 1.
_LOGARITHM = tuple(2 / (2 * k + 1) for k in range(11))
_SINE = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(9))
_COSINE = tuple((-1) ** k / math.factorial(2 * k) for k in range(10))
Number = npt.NDArray[np.float64]

_BITS = 24
_BASE = 2.0**_BITS
_DIGITS = 13
_FRACTION = 10  # Digits after the point.
_WEIGHTS = _BASE ** (np.arange(_DIGITS) - _FRACTION)
_INVERSES = np.where(np.arange(_DIGITS) < _DIGITS - 1, 1 / _BASE, 0.0)
_SCALES = _BASE ** (_FRACTION - np.arange(_DIGITS + 1.0))
# A digit is what is left of a rounded number without the one rounded before it.
_CUTS = np.eye(_DIGITS + 1, _DIGITS) - _BASE * np.eye(_DIGITS + 1, _DIGITS, -1)
# Which digit of a product takes the product of two digits, `[169, 13]`.
_SUMS = np.arange(_DIGITS)[:, None] + np.arange(_DIGITS) - _FRACTION
_TAKES = np.equal(_SUMS.reshape(-1, 1), np.arange(_DIGITS)).astype(float)
# floor(pi 2^256).
_PI = 0x3243F6A8885A308D313198A2E03707344A4093822299F31D0082EFA98EC4E6C89
# `exp(z)` is raised to the power 2^16, so that `s` is taken 2^8 times.
_SQUARINGS = 16
# Terms of the series of a cosine, and of the exponential function.
_COSINES = 28
_EXPONENTIALS = 20
_SCALE = 2.0 ** (_SQUARINGS / 2)
_LEAST = 2.0**-129  # Where all bits are 0.


def _polynomial(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    *rest, second, last = coefficients
    value = x * last + second
    for coefficient in reversed(rest):
        value = value * x + coefficient
    return value


def pair(
    arithmetic: Arithmetic, words: Sequence[Lanes]
) -> tuple[Lanes, Lanes, Lanes]:
    """Returns two float64 normal variables from four words each, and an error.

    The error bounds what either is off by, in standard deviations, whatever
    words follow the four: lemma 9 of docs/finite_precision.md. The first two
    words are the high and the low half of the probability, and the last two
    those of the angle.
    """
    high, low, angle, rest = words
    radius, error = _radius(arithmetic, high, low)
    # 62 bits for an eighth of a turn to either side, in quarters of one.
    small = arithmetic.as_double((rest & 0xFFFFFFFC) | 2) * 2.0**-64
    turn = arithmetic.as_signed_double(angle) * 2.0**-32 + small
    turn = turn * (math.pi / 2)
    square = turn * turn
    sine = radius * turn * _polynomial(square, _SINE)
    cosine = radius * _polynomial(square, _COSINE)
    # Multiplied by 1 or -1, which is exact.
    sign = arithmetic.as_double(rest & 1) * -2.0 + 1.0
    cosine = cosine * sign
    swap = rest & 2
    return (
        arithmetic.where_bit(swap, sine, cosine),
        arithmetic.where_bit(swap, cosine, sine),
        error,
    )


def _radius(
    arithmetic: Arithmetic, high: Lanes, low: Lanes
) -> tuple[Lanes, Lanes]:
    probability = _fraction(arithmetic, high, low)
    opposite = high ^ 0xFFFFFFFF
    complement = _fraction(arithmetic, opposite, low ^ 0xFFFFFFFF)
    # The exponent of the nearest float32 is good enough.
    bits = arithmetic.bits_of_float(arithmetic.narrowed(probability))
    moved = bits + (_BITS_OF_ONE - _BITS_OF_LEAST_MANTISSA)
    biased = arithmetic.shifted_right(moved, _MANTISSA_BITS)
    power = arithmetic.shifted_left(
        biased * 0xFFFFFFFF + 2 * int(_EXPONENT_BIAS), _MANTISSA_BITS
    )
    power = arithmetic.widened(arithmetic.float_of_bits(power))
    mantissa = probability * power
    # Near 1, where the exponent is 0, the complement has the digits.
    is_small = arithmetic.shifted_right(bits - _BITS_OF_LEAST_MANTISSA, 31)
    x = arithmetic.where_bit(is_small, mantissa - 1.0, complement * -1.0)
    s = x / (x + 2.0)
    logarithm = s * _polynomial(s * s, _LOGARITHM)
    exponent = arithmetic.as_double(biased) - _EXPONENT_BIAS
    logarithm = logarithm + exponent * math.log(2)
    radius = arithmetic.square_root(logarithm * -2.0)
    # Arithmetic adds an error, and so do bits of `v` that are not drawn.
    rounding = radius * _OF_ROUNDING + _OF_NEXT_BITS
    is_far = arithmetic.shifted_right(opposite, _BITS_OF_NEAR_ONE)
    near = arithmetic.where_bit(is_far, rounding, 1.0)
    return radius, near + power * _OF_NEXT_BITS_BY_POWER


def _fraction(arithmetic: Arithmetic, high: Lanes, low: Lanes) -> Lanes:
    small = arithmetic.as_double(low) * 2.0**-64 + _HALF_ULP
    return arithmetic.as_double(high) * 2.0**-32 + small


def refined(words: tf.Tensor, more: tf.Tensor, stddev: tf.Tensor) -> tf.Tensor:
    """Returns the variables of definition 1, rounded to integers.

    Guarantee: each is right but for a probability of `2^-97` (theorem 3).

    `words` are uint32 `[pairs, 4]`, as `pair` takes them, and `more` the next
    words of the same uniform variables. The stddev is 0 or in `[2^24, 2^25)`.
    The result is int32 `[2 * pairs]`, pair by pair.
    """
    high, low, angle, rest = tf.unstack(words, axis=-1)
    one, two, three, four = tf.unstack(more, axis=-1)
    signed = tf.bitcast(angle, tf.int32)
    radius = tf.stack([high, low, one, two], axis=-1)
    v, complement = (
        tf.cast(each, tf.float64) * 2.0 ** -np.array([32.0, 64, 96, 128])
        for each in (radius, tf.bitwise.invert(radius))
    )
    about = _minus_log(v, complement)
    turn = [
        tf.cast(each, tf.float64)
        for each in (signed, rest & 0xFFFFFFFC, three, four)
    ]
    turn = tf.stack(turn, axis=-1) * 2.0 ** -np.array([32.0, 64, 94, 126])
    turn = _carried(tf.reduce_sum(_number(turn), axis=-2))
    minus_log, squares = _logarithms(v, about, turn, stddev)
    below = tf.floor(tf.sqrt(_float(squares) * about) / _SCALE)
    half = _number(below + 0.5)
    # Lemma 10: half-integers, and what is compared with their squares.
    both = tf.stack([squares, half]), tf.stack([minus_log, -half])
    is_beyond = _float(tf.reduce_sum(_product(*both), axis=0)) >= 0
    sizes = below + tf.cast(is_beyond, tf.float64)
    # The sine has the sign of the turn.
    is_negative = tf.stack([signed < 0, (rest & 1) > 0])
    values = tf.where(is_negative, -sizes, sizes)
    values = tf.where((rest & 2) > 0, values, values[::-1])
    return tf.reshape(tf.cast(tf.transpose(values), tf.int32), [-1])


def _logarithms(
    v: tf.Tensor, about: tf.Tensor, turn: tf.Tensor, stddev: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `-log(v) / 2^16` and `2^16 s^2 (1 -+ cos(pi turn))`: lemma 12.

    Both are numbers, of shapes `[2, pairs, 13]`. One loop serves both, so that
    there is little to compile. Newton's method improves the logarithm. The
    uniform variable comes in parts `[pairs, 4]`, and `about` is `-log(v)` to a
    relative 2^-39.
    """
    near = tf.maximum(tf.reduce_sum(v, axis=-1), _LEAST)
    exact = tf.reduce_sum(_number(v), axis=-2)
    s = _number(stddev * _SCALE + tf.zeros_like(near))
    added, is_power, is_scale = map(tf.constant, _STEPS)

    def step(
        i: tf.Tensor, minus_log: tf.Tensor, values: tf.Tensor
    ) -> list[tf.Tensor]:
        factor = tf.where(is_scale[i], s, turn)
        own = tf.where(is_power[i], values[2], -minus_log)
        product = _product(values, tf.stack([factor, factor, own]))
        return [i + 1, minus_log, product + added[i]]

    def improved(
        i: tf.Tensor, minus_log: tf.Tensor, values: tf.Tensor
    ) -> list[tf.Tensor]:
        start = [tf.constant(0), minus_log, tf.zeros_like(values)]
        count = len(_STEPS[0])
        *_, values = tf.while_loop(lambda i, *_: i < count, step, start)
        error = _float(exact - values[2]) / near
        moved = _number(-(error + error * error / 2) / _SCALE**2)
        return [i + 1, _carried(minus_log + moved), values]

    first = _number(about / _SCALE**2)
    start = [tf.constant(0), first, tf.stack([first] * 3)]
    _, minus_log, values = tf.while_loop(lambda i, *_: i < 3, improved, start)
    return tf.stack([minus_log] * 2), values[:2]


def _minus_log(v: tf.Tensor, complement: tf.Tensor) -> tf.Tensor:
    """Returns `-log(v)` as float64, to a relative 2^-39, from parts."""
    small = tf.maximum(tf.reduce_sum(v, axis=-1), _LEAST)
    rest = tf.minimum(tf.reduce_sum(complement, axis=-1), 0.5)
    return -tf.where(small < 0.5, tf.math.log(small), tf.math.log1p(-rest))


def _number(values: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of float64 below 2^71, cut after the last digit."""
    return tf.round(tf.expand_dims(values, -1) * _SCALES) @ _CUTS


def _float(number: tf.Tensor) -> tf.Tensor:
    """Returns the float64 near a number, to a relative 2^-47."""
    return tf.reduce_sum(_carried(number) * _WEIGHTS, axis=-1)


def _product(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns a product, without what is below the last digit: lemma 11."""
    products = tf.expand_dims(one, -1) * tf.expand_dims(other, -2)
    rows = tf.reshape(products, [-1, _DIGITS**2])
    return _carried(tf.reshape(rows @ _TAKES, products.shape[:-1]))


def _carried(number: tf.Tensor) -> tf.Tensor:
    """Returns the same number, of digits of a size below 2^23 + 65."""
    for _ in range(2):
        # Nothing is carried from the last digit, which `roll` makes the first.
        carry = tf.round(number * _INVERSES)
        number += tf.roll(carry, 1, -1) - carry * _BASE
    return number


def _of_ratio(numerator: int, denominator: int) -> Number:
    """Returns the number of a ratio, cut after the last digit."""
    units = numerator * 2 ** (_BITS * _FRACTION) // denominator
    own = [units >> _BITS * i & (2**_BITS - 1) for i in range(_DIGITS)]
    return np.array(own, float)


_ONE = _of_ratio(1, 1)


def _steps() -> tuple[Number, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Returns what the steps of the loop add, and which factors they take.

    The series of Taylor by Horner's rule: `1 - cos(pi x)`, `1 + cos(pi x)` and
    `exp(z)`. The first two are then multiplied by the scale, twice. The third
    is squared, again and again.
    """
    cosine = [
        (-1) ** n
        * _of_ratio(_PI ** (2 * n), 2 ** (512 * n) * math.factorial(2 * n))
        for n in range(_COSINES)
    ]
    count = 2 * _COSINES + 1
    added = np.zeros((count, 3, 1, _DIGITS))
    added[2 * _COSINES - 2 :: -2, 1, 0] = cosine
    added[:, 0] = -added[:, 1]
    added[2 * _COSINES - 2, :2, 0] += _ONE
    is_power = np.arange(count) >= count - _SQUARINGS
    last = count - _SQUARINGS - 1
    for n in range(_EXPONENTIALS):
        added[last - n, 2, 0] = _of_ratio(1, math.factorial(n))
    return added, is_power, np.arange(count) >= count - 2


_STEPS = _steps()
