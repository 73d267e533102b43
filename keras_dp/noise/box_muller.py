"""Normal variables from random words, accurate far into the tails.

Four words of 32 bits make two normal variables. Two of the words are a number
`m` of 64 bits, which gives a probability `v = (m + 1/2) / 2^64` and a radius
`r = sqrt(-2 log v)`. The two others choose one of `2^64` equidistant angles,
none of which is on an axis.

Guarantee: neither `v` nor `1 - v` loses digits, so variables are right near 0
and in the tails alike; lemma 9 of docs/finite_precision.md bounds their error.
They are finite, never 0, and as often negative as positive. None is larger than
9.5 in size; those in the tail beyond are made by `refinement`.

Source: Box and Muller (1958), "A note on the generation of random normal
deviates", Annals of Mathematical Statistics 29.
"""

import math
from collections.abc import Sequence

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
    words follow the four: lemma 9 of docs/finite_precision.md.

    Args:
        arithmetic: The operations on words.
        words: The high and the low half of the probability, and of the angle.
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
