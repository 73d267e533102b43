"""Normal variables from random words, accurate far into the tails.

Three words of 32 bits make two normal variables. Two of the words are a number
`m` of 64 bits, which gives a probability `v = (m + 1/2) / 2^64` and a radius
`r = sqrt(-2 log v)`. The third word chooses one of `2^32` equidistant angles,
none of which is on an axis.

Guarantee: variables are right to a relative 4e-7, for `v` near 0 and near 1
alike: neither `v` nor `1 - v` loses digits. They are finite, never 0, and as
often negative as positive. None is larger than 9.5 in size; a normal variable
is larger with probability 2e-21. Before it is rounded to float32, the
distribution of one variable differs from the normal distribution by a total
variation of about 1e-10. (Radii are further apart than floats only for
`v < 2^-39`, beyond 7 standard deviations. And the mean of a smooth function
over this many equidistant angles is nearly its integral.)

Source: Box and Muller (1958), "A note on the generation of random normal
deviates", Annals of Mathematical Statistics 29. Polynomials are our own
minimax fits.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from keras_dp.noise.xla.arithmetic import Arithmetic, Lanes

WORDS_OF_PAIR = 3
WORDS_OF_PRECISE_PAIR = 4
# The largest variable, where `m` is 0.
LARGEST = math.sqrt(2 * 65 * math.log(2))

_HALF_ULP = 2.0**-65  # Puts `v` between its neighbours.
# The bits of 1 / sqrt(2) as float32, the smallest mantissa here.
_BITS_OF_LEAST_MANTISSA = 0x3F3504F3
_BITS_OF_ONE = 0x3F800000
_EXPONENT_BIAS = 127.0
_MANTISSA = 0x007FFFFF
_MANTISSA_BITS = 23
# (log1p(x) - x) / x^2 on [1/sqrt(2) - 1, sqrt(2) - 1], for a relative 3e-8.
_LOGARITHM = (
    -0.499999916203695,
    0.3333395027153952,
    -0.25001754626817296,
    0.19962070708903543,
    -0.16570517619454747,
    0.14917990006342027,
    -0.14307470392669416,
    0.08734751498274848,
)
# sin(pi x / 2) / x and cos(pi x / 2) in x^2, |x| <= 1/2: 3e-9 and 4e-10.
_SINE = (
    1.5707963217466565,
    -0.6459634597512203,
    0.0796800179528763,
    -0.004601606655078208,
)
_COSINE = (
    1.0,
    -1.233700517944034,
    0.2536686247414382,
    -0.020855992755806962,
    0.0008950401042196228,
)
# In float64: log(1 + x) = 2 artanh(s) for s = x / (x + 2), |s| < 0.172, and
# the series of Taylor for an eighth of a turn. All are cut below 1e-16.
# Bounds of errors: lemma 9 of docs/finite_precision.md.
_OF_ROUNDING = 2.0**-49
_OF_NEXT_BITS = 2.0**-51
_OF_NEXT_BITS_BY_POWER = 2.0**-63
_BITS_OF_NEAR_ONE = 7  # Of 32: probabilities above 1 - 2^-25.
_PRECISE_LOGARITHM = tuple(2 / (2 * k + 1) for k in range(11))
_PRECISE_SINE = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(9))
_PRECISE_COSINE = tuple((-1) ** k / math.factorial(2 * k) for k in range(10))


def pair(arithmetic: Arithmetic, words: Sequence[Lanes]) -> tuple[Lanes, Lanes]:
    """Returns two float32 normal variables from three words each.

    Args:
        arithmetic: The operations on words.
        words: The high and the low half of the probability, and the angle.
    """
    high, low, angle = words
    radius = _radius(arithmetic, high, low)
    # 30 bits for an eighth of a turn to either side, in quarters of one.
    turn = (angle & 0xFFFFFFFC) | 2
    turn = arithmetic.as_signed_float(turn) * 2.0**-32
    square = turn * turn
    sine = radius * turn * _polynomial(square, _SINE)
    cosine = radius * _polynomial(square, _COSINE)
    sign = arithmetic.shifted_left(angle & 1, 31)
    cosine = arithmetic.float_of_bits(arithmetic.bits_of_float(cosine) ^ sign)
    swap = angle & 2
    return (
        arithmetic.where_bit(swap, sine, cosine),
        arithmetic.where_bit(swap, cosine, sine),
    )


def _radius(arithmetic: Arithmetic, high: Lanes, low: Lanes) -> Lanes:
    probability = _fraction(arithmetic, high, low)
    complement = _fraction(arithmetic, high ^ 0xFFFFFFFF, low ^ 0xFFFFFFFF)
    bits = arithmetic.bits_of_float(probability)
    moved = bits + (_BITS_OF_ONE - _BITS_OF_LEAST_MANTISSA)
    exponent = arithmetic.as_signed_float(
        arithmetic.shifted_right(moved, _MANTISSA_BITS)
    )
    mantissa = arithmetic.float_of_bits(
        (moved & _MANTISSA) + _BITS_OF_LEAST_MANTISSA
    )
    # Near 1, where the exponent is 0, the complement has the digits.
    is_small = arithmetic.shifted_right(bits - _BITS_OF_LEAST_MANTISSA, 31)
    x = arithmetic.where_bit(is_small, mantissa - 1.0, complement * -1.0)
    logarithm = x + x * x * _polynomial(x, _LOGARITHM)
    logarithm = logarithm + (exponent - _EXPONENT_BIAS) * math.log(2)
    return arithmetic.square_root(logarithm * -2.0)


def _fraction(arithmetic: Arithmetic, high: Lanes, low: Lanes) -> Lanes:
    small = arithmetic.as_float(low) * 2.0**-64 + _HALF_ULP
    return arithmetic.as_float(high) * 2.0**-32 + small


def _polynomial(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    *rest, second, last = coefficients
    value = x * last + second
    for coefficient in reversed(rest):
        value = value * x + coefficient
    return value


def precise_pair(
    arithmetic: Arithmetic, words: Sequence[Lanes]
) -> tuple[Lanes, Lanes, Lanes]:
    """Returns two float64 normal variables from four words each, and an error.

    The error bounds what either is off by, in standard deviations, whatever
    words follow the four: lemma 9 of docs/finite_precision.md.

    Args:
        arithmetic: The operations on words.
        words: The high and the low half of the probability, and of the angle.
    """
    high, low, angle, rest = words
    radius, error = _precise_radius(arithmetic, high, low)
    # 62 bits for an eighth of a turn to either side, in quarters of one.
    small = arithmetic.as_double((rest & 0xFFFFFFFC) | 2) * 2.0**-64
    turn = arithmetic.as_signed_double(angle) * 2.0**-32 + small
    turn = turn * (math.pi / 2)
    square = turn * turn
    sine = radius * turn * _polynomial(square, _PRECISE_SINE)
    cosine = radius * _polynomial(square, _PRECISE_COSINE)
    # Multiplied by 1 or -1, which is exact.
    sign = arithmetic.as_double(rest & 1) * -2.0 + 1.0
    cosine = cosine * sign
    swap = rest & 2
    return (
        arithmetic.where_bit(swap, sine, cosine),
        arithmetic.where_bit(swap, cosine, sine),
        error,
    )


def _precise_radius(
    arithmetic: Arithmetic, high: Lanes, low: Lanes
) -> tuple[Lanes, Lanes]:
    probability = _precise_fraction(arithmetic, high, low)
    opposite = high ^ 0xFFFFFFFF
    complement = _precise_fraction(arithmetic, opposite, low ^ 0xFFFFFFFF)
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
    logarithm = s * _polynomial(s * s, _PRECISE_LOGARITHM)
    exponent = arithmetic.as_double(biased) - _EXPONENT_BIAS
    logarithm = logarithm + exponent * math.log(2)
    radius = arithmetic.square_root(logarithm * -2.0)
    # Of arithmetic, and of the bits of the probability that are not drawn.
    rounding = radius * _OF_ROUNDING + _OF_NEXT_BITS
    is_far = arithmetic.shifted_right(opposite, _BITS_OF_NEAR_ONE)
    near = arithmetic.where_bit(is_far, rounding, 1.0)
    return radius, near + power * _OF_NEXT_BITS_BY_POWER


def _precise_fraction(arithmetic: Arithmetic, high: Lanes, low: Lanes) -> Lanes:
    small = arithmetic.as_double(low) * 2.0**-64 + _HALF_ULP
    return arithmetic.as_double(high) * 2.0**-32 + small


def pair_in_float64(
    word: tf.Tensor, angle: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns two float64 normal variables from two words of 64 bits.

    Args:
        word: The probability, int64 of any shape.
        angle: The angle, int64 of the same shape.
    """
    probability = _fraction_in_float64(word)
    complement = _fraction_in_float64(tf.bitwise.invert(word))
    logarithm = tf.where(
        probability < 0.5,
        tf.math.log(probability),
        tf.math.log1p(-tf.minimum(complement, 0.5)),
    )
    radius = tf.sqrt(-2 * logarithm)
    turn = (2 * math.pi) * _fraction_in_float64(angle)
    return radius * tf.cos(turn), radius * tf.sin(turn)


def _fraction_in_float64(word: tf.Tensor) -> tf.Tensor:
    unsigned = tf.cast(tf.bitcast(word, tf.uint64), tf.float64)
    return unsigned * 2.0**-64 + _HALF_ULP
