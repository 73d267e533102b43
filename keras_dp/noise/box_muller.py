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

Where a float64 cannot decide how a variable is rounded, 128 bits of radius and
of angle do: in integers of Python on the host (`refined_by_integers`), and in
tensors where XLA compiles the caller and cannot call the host (`refined`).

A normal variable `x` of standard deviation `s` is at least `h` in size if

    s^2 (1 + cos(w)) (-log(v)) >= h^2,

for a uniform `v` in (0, 1) and twice the angle of Box and Muller, `w`, or
`w + pi` for the sine. So one comparison rounds `x`, with the half-integer next
to it. Both sides are computed in fixed point.

A *number* is a tensor `[..., 13]` of float64: the digits of the number in base
`2^24`, from the last on. Ten digits follow the point. Digits are integers of
either sign. They only meet in sums and products of integers below `2^53`. So
every order of operations, fused or not, gives the same. Products are exact but
for what is cut below `2^-211`.

Source: our own proofs, in docs/finite_precision.md, section "The rounded
normal"; definitions and lemmas are numbered as there.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

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
# A carry is taken from its digit, and added to the next one.
_CARRIES = np.eye(_DIGITS, k=1) - _BASE * np.eye(_DIGITS)
# Which digit of a product takes the product of two digits, `[169, 13]`.
_SUMS = np.arange(_DIGITS)[:, None] + np.arange(_DIGITS) - _FRACTION
_TAKES = np.equal(_SUMS.reshape(-1, 1), np.arange(_DIGITS)).astype(float)
# Integers are in units of 2^-256.
_UNITS = 256
_UNIT = 1 << _UNITS
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
    high, low, angle, rest = (words[:, i] for i in range(WORDS_OF_PAIR))
    one, two, three, four = (more[:, i] for i in range(WORDS_OF_PAIR))
    whole = _double(angle)
    signed = tf.where(whole < 2.0**31, whole, whole - 2.0**32)
    radius = tf.stack([high, low, one, two], axis=-1)
    v, complement = (
        _double(each) * 2.0 ** -np.array([32.0, 64, 96, 128])
        for each in (radius, radius ^ 0xFFFFFFFF)
    )
    about = _minus_log(v, complement)
    parts = [signed, *map(_double, (rest & 0xFFFFFFFC, three, four))]
    turn = tf.stack(parts, axis=-1) * 2.0 ** -np.array([32.0, 64, 94, 126])
    turn = _carried(tf.reduce_sum(_number(turn), axis=-2))
    minus_log, squares = _logarithms(v, about, turn, stddev)
    below = tf.floor(tf.sqrt(_float(squares) * about) / _SCALE)
    half = _number(below + 0.5)
    # Lemma 10: half-integers, and what is compared with their squares.
    both = tf.stack([squares, half]), tf.stack([minus_log, -half])
    is_beyond = _float(tf.reduce_sum(_product(*both), axis=0)) >= 0
    sizes = below + _double(is_beyond)
    # The sine has the sign of the turn.
    is_negative = tf.stack([signed < 0, (rest & 1) > 0])
    values = tf.where(is_negative, -sizes, sizes)
    values = tf.where((rest & 2) > 0, values, values[::-1])
    return tf.reshape(tf.cast(tf.transpose(values), tf.int32), [-1])


def _double(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, tf.float64)


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
    square = _product(turn, turn)
    exact = tf.reduce_sum(_number(v), axis=-2)
    s = _number(stddev * _SCALE + tf.zeros_like(near))
    added, is_power, is_scale = map(tf.constant, _STEPS)

    def step(
        i: Any, minus_log: tf.Tensor, values: tf.Tensor
    ) -> list[tf.Tensor]:
        factor = tf.where(is_scale[i], s, square)
        own = tf.where(is_power[i], values[2], -minus_log)
        product = _product(values, tf.stack([factor, factor, own]))
        return [minus_log, product + added[i]]

    def improved(
        i: Any, minus_log: tf.Tensor, values: tf.Tensor
    ) -> list[tf.Tensor]:
        start = [minus_log, tf.zeros_like(values)]
        _, values = _repeated(len(_STEPS[0]), step, start)
        error = _float(exact - values[2]) / near
        moved = _number(-(error + error * error / 2) / _SCALE**2)
        return [_carried(minus_log + moved), values]

    first = _number(about / _SCALE**2)
    start = [first, tf.stack([first] * 3)]
    minus_log, values = _repeated(3, improved, start)
    return tf.stack([minus_log] * 2), values[:2]


def _repeated(
    count: int,
    step: Callable[..., list[tf.Tensor]],
    values: list[tf.Tensor],
) -> list[tf.Tensor]:
    """Returns values after steps, each of which takes its number, too."""
    _, *values = tf.while_loop(
        lambda i, *_: i < count,
        lambda i, *values: [i + 1, *step(i, *values)],
        [tf.constant(0), *values],
    )
    return values


def _minus_log(v: tf.Tensor, complement: tf.Tensor) -> tf.Tensor:
    """Returns `-log(v)` as float64, to a relative 2^-39, from parts."""
    small = tf.maximum(tf.reduce_sum(v, axis=-1), _LEAST)
    rest = tf.minimum(tf.reduce_sum(complement, axis=-1), 0.5)
    return -tf.where(small < 0.5, tf.math.log(small), tf.math.log1p(-rest))


def _number(values: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of float64 below 2^71, cut after the last digit."""
    return tf.round(values[..., np.newaxis] * _SCALES) @ _CUTS


def _float(number: tf.Tensor) -> tf.Tensor:
    """Returns the float64 near a number, to a relative 2^-47."""
    return tf.reduce_sum(_carried(number) * _WEIGHTS, axis=-1)


def _product(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns a product, without what is below the last digit: lemma 11."""
    products = one[..., np.newaxis] * other[..., np.newaxis, :]
    rows = tf.reshape(products, [-1, _DIGITS**2])
    return _carried(tf.reshape(rows @ _TAKES, products.shape[:-1]))


def _carried(number: tf.Tensor) -> tf.Tensor:
    """Returns the same number, of digits of a size below 2^23 + 65."""
    for _ in range(2):
        # Nothing is carried from the first digit.
        number = number + tf.round(number * _INVERSES) @ _CARRIES
    return number


def _of_ratio(numerator: int, denominator: int) -> Number:
    """Returns the number of a ratio, cut after the last digit."""
    units = numerator * 2 ** (_BITS * _FRACTION) // denominator
    own = [units >> _BITS * i & (2**_BITS - 1) for i in range(_DIGITS)]
    return np.array(own, float)


_ONE = _of_ratio(1, 1)


def _steps() -> tuple[Number, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Returns what the steps of the loop add, and which factors they take.

    The series of Taylor by Horner's rule: `1 - cos(pi x)` and `1 + cos(pi x)`,
    in `x^2`, and `exp(z)`. The first two are then multiplied by the scale,
    twice. The third is squared, again and again.
    """
    cosine = [
        (-1) ** n
        * _of_ratio(_PI ** (2 * n), 2 ** (512 * n) * math.factorial(2 * n))
        for n in range(_COSINES)
    ]
    count = _EXPONENTIALS + _SQUARINGS
    added = np.zeros((count, 3, 1, _DIGITS))
    added[count - 2 - _COSINES : -2, 1, 0] = cosine[::-1]
    added[:, 0] = -added[:, 1]
    added[-3, :2, 0] += _ONE
    is_power = np.arange(count) >= count - _SQUARINGS
    last = count - _SQUARINGS - 1
    for n in range(_EXPONENTIALS):
        added[last - n, 2, 0] = _of_ratio(1, math.factorial(n))
    return added, is_power, np.arange(count) >= count - 2


_STEPS = _steps()


def refined_by_integers(
    words: npt.NDArray[np.uint32],
    more: npt.NDArray[np.uint32],
    stddev: float,
) -> npt.NDArray[np.int32]:
    """Returns what `refined` returns, on the host and in less time.

    Guarantee: that of `refined`. Logarithm and cosine are integers, in units of
    `2^-256`: lemma 13 of docs/finite_precision.md.
    """
    steps = int(stddev * 2.0**28)  # Exactly, as in `streams`.
    found: list[int] = []
    for own, rest in zip(words.tolist(), more.tolist(), strict=True):
        high, low, angle, last = own
        v = high << 96 | low << 64 | rest[0] << 32 | rest[1]
        signed = angle - (angle >> 31 << 32)
        turn = (signed << 94) + (last >> 2 << 64) + (rest[2] << 32) + rest[3]
        minus_log, cosine = _minus_log_of(v), _cosine_of(turn)
        pair = []
        for factor, is_negative in (
            (_UNIT + cosine, last & 1),
            (_UNIT - cosine, turn < 0),
        ):
            # Lemma 10, with an odd number for twice a half-integer.
            fours = 4 * steps * steps * factor * minus_log >> 2 * _UNITS + 56
            size = (math.isqrt(fours) + 1) // 2
            pair.append(-size if is_negative else size)
        found += reversed(pair) if last & 2 else pair
    return np.array(found, np.int32)


def _minus_log_of(v: int) -> int:
    """Returns `-log(v / 2^128)` in units."""
    v = max(v, 1)
    power = v.bit_length()
    if v * v < 1 << 2 * power - 1:
        power -= 1
    one = 1 << power  # `v / one` is between `1 / sqrt(2)` and `sqrt(2)`.
    part = _twice_artanh((abs(v - one) << _UNITS) // (v + one))
    return (128 - power) * _LOG_OF_2 + (part if v < one else -part)


def _twice_artanh(z: int) -> int:
    """Returns twice the inverse hyperbolic tangent of z, in [0, 1/3]."""
    square, power, total, k = z * z >> _UNITS, z, 0, 1
    while power:
        total += power // k
        power = power * square >> _UNITS
        k += 2
    return 2 * total


def _cosine_of(turn: int) -> int:
    """Returns `cos(pi turn / 2^126)` in units, of at most half a turn."""
    angle = abs(turn) * _PI >> 126
    square, term, total, k = angle * angle >> _UNITS, _UNIT, _UNIT, 0
    while term:
        k += 2
        term = (term * square >> _UNITS) // (k * (k - 1))
        total += -term if k % 4 else term
    return total


_LOG_OF_2 = _twice_artanh(_UNIT // 3)
