"""`BernoulliDraw` is as exact, and as cheap, as it claims."""

import os
from decimal import Decimal, localcontext

import numpy as np
import pytest

from keras_dp.sampling import bernoulli_draw, random_words
from keras_dp.sampling.bernoulli_draw import BernoulliDraw

SEED = 11


def words_of(*numbers):
    """Answers to `_uniform` for these numbers, as 128-bit fractions."""
    wide = [int(number * 2**128) for number in numbers]
    yield np.array([number >> 64 for number in wide], np.uint64)
    low = [number % 2**64 for number in wide if number < 2**118]
    if low:
        yield np.array(low, np.uint64)


@pytest.mark.parametrize("q", [2.0**-60, 1e-9, 0.006, 0.12, 0.125, 0.4, 0.999])
def test_tails_of_the_gaps_are_exact_to_43_bits(q):
    """Claim 1 of `BernoulliDraw`: U at its threshold, from 1 to 2^-76."""
    block = 1
    while q * block < 0.125:
        block *= 2
    with localcontext() as context:
        context.prec = 60
        exponents = [1, 2, 3, 10, 45, 100, 200, 400]
        thresholds = [(1 - Decimal(q)) ** (block * d) for d in exponents]
        slack = Decimal(2) ** -43
        inside = [x * (1 - slack) for x in thresholds if x > 2**-76]
        outside = [x * (1 + slack) for x in thresholds if x > 2**-76]
        words = [*words_of(*inside, *outside)]
    draw = BernoulliDraw(2**46, q)
    within = np.zeros(2**12, np.uint64)  # Offers 0, and accepts it.
    calls = iter([*words, *[within] * 9])

    gaps = draw.gaps(
        2 * len(inside), lambda count: np.resize(next(calls), count)
    )

    steps = np.minimum(exponents, 2**46 // block + 1)[: len(inside)]
    before = np.minimum(np.array(exponents) - 1, 2**46 // block + 1)
    np.testing.assert_array_equal(gaps[: len(inside)], steps * block)
    np.testing.assert_array_equal(
        gaps[len(inside) :], before[: len(inside)] * block
    )


@pytest.mark.parametrize("q", [2.0**-60, 1e-9, 0.006, 0.12])
def test_places_within_a_block_are_exact_to_48_bits(q):
    """Claim 2 of `BernoulliDraw`: offers at the threshold of acceptance."""
    block = 1
    while q * block < 0.125:
        block *= 2
    rejected = [max(1, block * i // 16) for i in range(1, 16)]
    with localcontext() as context:
        context.prec = 60
        slack = Decimal(2) ** -48
        above = [(1 - Decimal(q)) ** r * (1 + slack) for r in rejected]
        below = (1 - Decimal(q)) ** (block - 1) * (1 - slack)
        uniform = [int(x * 2**64) for x in (*above, above[-1], below)]
    offers = [*rejected, rejected[-1], block - 1]
    drawn = [offers, uniform]
    if block <= 2**13:  # Then offer and number are parts of one word.
        drawn = [[u // block * block + r for r, u in zip(*drawn, strict=True)]]
    calls = iter(
        [
            *words_of(Decimal(1) - Decimal(2) ** -100),
            *(np.array(part, object) for part in drawn),
        ]
    )

    (gap,) = BernoulliDraw(2**46, q).gaps(
        1, lambda count: next(calls).astype(np.uint64)
    )

    assert gap == block - 1


def test_a_million_million_records_cost_what_the_sample_costs():
    """A bit each would be a terabyte: nothing is as long as the data."""
    indices = BernoulliDraw(2**46, 1e-10).indices(
        random_words.from_seed(SEED, 0)
    )

    assert abs(len(indices) - 7037) < 6 * np.sqrt(7037)
    assert (np.diff(indices) > 0).all()
    assert indices[-1] < 2**46


@pytest.mark.parametrize("q", [1e-10, 0.004, 0.3])
def test_a_gap_costs_two_words_and_a_half(q):
    """Drawing words from the kernel is most of the work."""
    asked = []
    words = random_words.from_seed(SEED, 0)

    def counted(count):
        asked.append(count)
        return words(count)

    BernoulliDraw(2**46, q).gaps(60_000, counted)

    assert sum(asked) < (3.5 if q < 1e-9 else 2.3) * 60_000


def test_small_uniforms_have_128_bits():
    """Below 2^-10 all of the second word counts, above none of it."""
    small, low = 2**54 - 1, 2**63 + 5
    calls = iter([np.array([small, 2**54, 0]), np.array([low, 1])])

    uniform = bernoulli_draw._uniform(
        3, lambda count: next(calls).astype(np.uint64)
    )

    assert uniform.tolist() == [
        float((small * 2**64 + low) / 2**128),
        2.0**-10,
        2.0**-128,
    ]


@pytest.mark.parametrize("word", [0, 2**64 - 1])
@pytest.mark.parametrize("q", [2.0**-60, 1e-3, 0.5, 1 - 2.0**-53])
@pytest.mark.parametrize("size", [1, 3, 2**46])
def test_extreme_words_stay_in_range(word, q, size):
    def words(count):
        result = np.full(count, word, np.uint64)
        result[count // 2 :: 2] = 0  # Every other offer is accepted.
        return result

    gaps = BernoulliDraw(size, q).gaps(50, words)

    assert gaps.dtype == np.int64
    assert (gaps >= 0).all()


def test_the_generator_is_the_kernels():
    words = random_words.from_operating_system(3)

    assert random_words.os is os
    assert words.dtype == np.uint64
    assert len(set(words.tolist())) == 3  # Equal with probability 2^-62.
