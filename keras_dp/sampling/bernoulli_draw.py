"""Draws a Poisson sample, in time and memory proportional to its size.

The number of records skipped between two that take part, a *gap*, is geometric:
`P(gap = g) = q (1 - q)^g`. So it suffices to draw gaps until the end of the
data is passed.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.sampling.random_words import Words

# With gaps capped at the population, the positions of one pass fit int64.
LARGEST_POPULATION = 2**46
GAPS_PER_PASS = 2**16
# Below, a block of records would not fit int64, nor a draw ever be seen.
SMALLEST_PROBABILITY = 2.0**-60
# Uniforms below 2^-10 get another 64 bits.
_NEEDS_LOW_BITS = np.uint64(2**54)
# An offer within a block may take these bits of a word: 51 are left.
_MOST_SHARED_BITS = 13

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class BernoulliDraw:
    """Lets each of a population take part independently, with probability q.

    Guarantee: for uniform words, `P(gap = g)` is `q (1 - q)^g` up to a factor
    within `1 ± 2^-38`, for every q and every g, but for gaps so long that
    together they have a chance of 2^-76. It follows that a round for which
    amplification by exact Poisson sampling gives (epsilon, delta) has, under
    this draw, epsilon + 2^-35 (3e-11) and
    `(1 + 2^-35) delta + (1 + e^epsilon) (expected size + 1) 2^-76`.

    Attributes:
        population_size: Number of records, in [1, 2^46].
        sampling_probability: Chance of each to take part, q, in [2^-60, 1].

    A gap is `b D + R`. For a block of `b = 2^k` records with `b q` in
    [1/8, 1/4) (or b = 1 if q >= 1/8) D, the blocks skipped, and R, the records
    skipped in the last, are independent: `P(D >= d) = (1-q)^(b d)`, and
    `P(R = r)` is proportional to `(1-q)^r` for `0 <= r < b`.

    1. `D = floor(log U / (b log(1-q)))`. U is a uniform of 64 bits, and of 128
       where the first ten are 0, rounded to float64, so `P(U <= x) = x (1 ±
       2^-51)` for x >= 2^-76. With a library
       `log` and `log1p` good to 4 and 2 units in the last place, the quotient
       is off by a factor within 1 ± 2^-49, which moves `log x`, at most 53,
       by 2^-43.2: `P(D >= d)` is exact up to 1 ± 2^-43. Its differences, the
       `P(D = d)`, lose a factor 2 / (1 - (1-q)^b) < 17.1: 1 ± 2^-38.9. Without
       blocks they would lose 2 / q, which is why there are blocks.
    2. R is exact but for the comparison that accepts it: 1 ± 2^-48. Its offer
       is taken from the low bits of a word, the number it is compared with
       from the other 51 or more, or from a word of its own.
    3. Take the data with record i and without it, and a sample s of the
       latter, of law P'. As samples of the former, s has the chance `P'(s) (1 -
       q)` and s + {i} has `P'(s) q`, up to the factors of the three gaps that
       differ, 1 ± 2^-36. So up to 1 ± 2^-36 the two outputs are mixtures over
       the same P', of `(1-q) M(s) + q M(s + {i})` and of `M(s)`. Amplification
       bounds this pair for each s, and by joint convexity for any P'.
       Replacing record i takes two such steps.

    >>> BernoulliDraw(5, sampling_probability=1.0).indices(lambda count: None)
    array([0, 1, 2, 3, 4])
    """

    population_size: int
    sampling_probability: float

    def __post_init__(self) -> None:
        _check.integer_at_least(1, population_size=self.population_size)
        if self.population_size > LARGEST_POPULATION:
            raise ValueError(
                "`population_size` must be at most 2**46. Received: "
                f"population_size={self.population_size!r}."
            )
        _check.probability(sampling_probability=self.sampling_probability)
        if self.sampling_probability < SMALLEST_PROBABILITY:
            raise ValueError(
                "`sampling_probability` must be at least 2**-60. "
                f"Received: sampling_probability={self.sampling_probability!r}."
            )

    def indices(self, words: Words) -> Integers:
        """Returns one sample: the indices that take part, in order."""
        size, q = self.population_size, self.sampling_probability
        if q == 1:
            return np.arange(size)
        last = -1
        passes = []
        while last < size - 1:
            expected = q * (size - 1 - last)
            count = int(expected + 4 * math.sqrt(expected)) + 8
            gaps = self.gaps(min(count, GAPS_PER_PASS), words)
            indices = last + np.cumsum(1 + np.minimum(gaps, size))
            last = int(indices[-1])
            passes.append(indices[: np.searchsorted(indices, size)])
        return np.concatenate(passes)

    def gaps(self, count: int, words: Words) -> Integers:
        """Returns independent gaps; those that pass the end are inexact."""
        _, exponent = math.frexp(
            self.sampling_probability
        )  # 2^e > q >= 2^(e-1).
        block = 1 << max(0, -exponent - 2)
        log_skip = math.log1p(-self.sampling_probability)
        uniform = _uniform(count, words)
        skipped = np.floor(np.log(uniform) / (block * log_skip))
        # Casting is undefined beyond int64; what passes the end is all alike.
        blocks = np.minimum(skipped, self.population_size // block + 1)
        within = _within_block(count, block, log_skip, words)
        return blocks.astype(np.int64) * block + within


def _uniform(count: int, words: Words) -> Floats:
    """Returns uniforms in (0, 1], of 64 bits, and of 128 where they are small.

    Rounding is relative: small values keep all digits, and small chances with
    them. From 2^-10 on, 64 bits are more than a float64 holds of them. All
    bits 0 would be 0, and has a chance of 2^-128.
    """
    high = words(count)
    uniform = np.asarray(high * 2.0**-64, np.float64)
    small = np.flatnonzero(high < _NEEDS_LOW_BITS)
    if small.size:
        low = words(small.size)
        uniform[small] = (high[small] + low * 2.0**-64) * 2.0**-64
    return np.maximum(uniform, 2.0**-128)


def _within_block(
    count: int, block: int, log_skip: float, words: Words
) -> Integers:
    """Returns `r` in `[0, block)` with chances in proportion to `(1-q)^r`.

    By rejection: on average seven of eight offers are accepted, or more.
    """
    if block == 1:
        return np.zeros(count, np.int64)
    bits = block.bit_length() - 1
    accepted = np.empty(0, np.int64)
    while (missing := count - accepted.size) > 0:
        offers = missing + missing // 7 + 16
        drawn = words(offers)
        offered = (drawn & np.uint64(block - 1)).astype(np.int64)
        if bits <= _MOST_SHARED_BITS:
            uniform = (drawn >> np.uint64(bits)) * 2.0 ** (bits - 64)
        else:
            uniform = words(offers) * 2.0**-64
        takes = uniform < np.exp(offered * log_skip)
        accepted = np.concatenate([accepted, offered[takes]])
    return accepted[:count]
