"""Samples are what the ledger says of them: independent, with probability q.

Seeds are fixed. Had they been free, each check would fail for a correct library
with probability `FALSE_ALARM`. Every check is also shown to fail for samplers
that are nearly right.
"""

import functools

import numpy as np
import pytest
from scipy import stats

from keras_dp.sampling import PoissonBatches, bernoulli_draw, random_words
from keras_dp.sampling.bernoulli_draw import BernoulliDraw

FALSE_ALARM = 1e-6
ROUNDS = 8000
# Blocks of 1, 2 and 16 records in the construction of the gaps.
CASES = [(40, 0.3), (60, 0.1), (300, 0.012)]


# Samplers: each returns who takes part, a boolean matrix [rounds, records].


@functools.cache
def library(size, q):
    batches = PoissonBatches(
        np.arange(size),
        sampling_probability=q,
        physical_batch_size=size,
        seed=2026,
    )
    takes = np.zeros((ROUNDS, size), bool)
    for row, (records, mask, ends_sample) in zip(takes, batches, strict=False):
        assert ends_sample
        row[records[mask]] = True
    return takes


def ten_percent_more(size, q):
    return library(size, 1.1 * q)


def ten_percent_less(size, q):
    return library(size, 0.9 * q)


def shuffled(size, q):
    """Batches of equal size from a shuffled epoch, as most loaders do."""
    generator = np.random.default_rng(1)
    batch = max(2, round(size * q))
    takes = np.zeros((ROUNDS, size), bool)
    order = np.empty(0, int)
    for row in takes:
        if len(order) < batch:
            order = generator.permutation(size)
        row[order[:batch]] = True
        order = order[batch:]
    return takes


def gaps_off_by_one(size, q):
    """The classical mistake: a record is never followed by its neighbour.

    The probability is adapted so that as many take part.
    """
    gaps = np.random.default_rng(3).geometric(q / (1 - q), (ROUNDS, size)) + 1
    takes = np.zeros((ROUNDS, size), bool)
    for row, positions in zip(takes, np.cumsum(gaps, axis=1), strict=True):
        row[positions[positions <= size] - 1] = True
    return takes


def every_sample_twice(size, q):
    return np.repeat(library(size, q)[::2], 2, axis=0)


def together(workers, size):
    """Returns who takes part in what several workers draw in a round."""
    takes = np.zeros((ROUNDS, size), bool)
    for batches in workers:
        rows = zip(takes, batches, strict=False)
        for row, (records, mask, ends_sample) in rows:
            assert ends_sample
            row[records[mask]] = True
    return takes


@functools.cache
def shards(size, q):
    """Three workers, each on a shard of its own."""
    batches = PoissonBatches(
        np.arange(size),
        sampling_probability=q,
        physical_batch_size=3 * size,
        seed=2027,
    )
    return together([batches.shard(i, 3) for i in range(3)], size)


@functools.cache
def shards_of_one_stream(size, q):
    """Three workers that were given the same seed, and draw alike."""
    block = size // 3
    return together(
        [
            PoissonBatches(
                np.arange(block) + i * block,
                sampling_probability=q,
                physical_batch_size=size,
                seed=2027,
            )
            for i in range(3)
        ],
        size,
    )


@functools.cache
def overlapping_shards(size, q):
    """Three workers that all draw from the last third as well."""
    batches = PoissonBatches(
        np.arange(size),
        sampling_probability=q,
        physical_batch_size=3 * size,
        seed=2027,
    )
    last = batches.shard(2, 3)
    own = [batches.shard(i, 3) for i in range(3)]
    return together([*own, iter(last), iter(last)], size)


# Checks: each returns a p-value.


def sizes(takes, q):
    """Sample sizes are binomial (chi-squared, cells of at least 5)."""
    size = takes.shape[1]
    expected = ROUNDS * stats.binom.pmf(np.arange(size + 1), size, q)
    counts = np.bincount(takes.sum(axis=1), minlength=size + 1)
    cells = np.minimum(np.cumsum(expected) // 5, (ROUNDS - 5) // 5).astype(int)
    merged = [np.bincount(cells, weights=w) for w in (counts, expected)]
    kept = merged[1] > 0
    observed, wanted = (m[kept] for m in merged)
    return stats.chisquare(observed, wanted * ROUNDS / wanted.sum()).pvalue


def total(takes, q):
    """The number of all that took part (exact binomial test)."""
    return stats.binomtest(int(takes.sum()), takes.size, q).pvalue


def frequencies(takes, q):
    """Each record took part as often as the others (chi-squared)."""
    variance = ROUNDS * q * (1 - q)
    deviations = takes.sum(axis=0) - ROUNDS * q
    statistic = (deviations**2).sum() / variance
    return 2 * min(
        stats.chi2.sf(statistic, takes.shape[1]),
        stats.chi2.cdf(statistic, takes.shape[1]),
    )


def pairs(one, two, q):
    """Disjoint pairs are independent (chi-squared over the four cells)."""
    cells = np.bincount((2 * one + two).ravel().astype(int), minlength=4)
    chances = np.array([(1 - q) ** 2, (1 - q) * q, q * (1 - q), q * q])
    return stats.chisquare(cells, one.size * chances).pvalue


def neighbours(takes, q, lag=1):
    """Records at a distance do not know of each other."""
    size = takes.shape[1] // (2 * lag) * (2 * lag)
    blocks = takes[:, :size].reshape(ROUNDS, -1, 2, lag)
    return pairs(blocks[:, :, 0], blocks[:, :, 1], q)


def rounds(takes, q):
    """Rounds do not know of each other."""
    return pairs(takes[0::2], takes[1::2], q)


CHECKS = [sizes, total, frequencies, neighbours, rounds]


@pytest.mark.parametrize(("size", "q"), CASES)
@pytest.mark.parametrize("check", CHECKS)
def test_samples_are_independent_and_of_the_stated_probability(check, size, q):
    assert check(library(size, q), q) > FALSE_ALARM


@pytest.mark.full
@pytest.mark.parametrize("check", [sizes, total, frequencies, neighbours])
def test_samples_of_many_passes_are_no_different(check, monkeypatch):
    """Gaps drawn three at a time: nothing happens where a pass ends."""
    monkeypatch.setattr(bernoulli_draw, "GAPS_PER_PASS", 3)

    assert check(library.__wrapped__(60, 0.3), 0.3) > FALSE_ALARM


@pytest.mark.parametrize("lag", [2, 3, 7, 16])
@pytest.mark.parametrize(("size", "q"), CASES)
def test_records_further_apart_are_independent(size, q, lag):
    """Also across the blocks that gaps are made of."""
    assert neighbours(library(size, q), q, lag) > FALSE_ALARM


@pytest.mark.full
@pytest.mark.parametrize(("size", "q"), CASES)
@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (sizes, shuffled),
        (total, ten_percent_more),
        (frequencies, ten_percent_less),
        (neighbours, gaps_off_by_one),
        (rounds, every_sample_twice),
    ],
)
def test_the_checks_above_can_fail(check, wrong, size, q):
    """Control: samplers that are nearly right would have been seen."""
    assert check(wrong(size, q), q) < FALSE_ALARM


def across_shards(takes, q):
    """Records in the same place of two shards do not know of each other."""
    return neighbours(takes, q, lag=takes.shape[1] // 3)


SHARDED = [(60, 0.1), (300, 0.012)]  # Sizes that three blocks share equally.


@pytest.mark.parametrize(("size", "q"), SHARDED)
@pytest.mark.parametrize("check", [*CHECKS, across_shards])
def test_what_all_shards_draw_together_is_a_poisson_sample(check, size, q):
    assert check(shards(size, q), q) > FALSE_ALARM


@pytest.mark.full
@pytest.mark.parametrize("check", [sizes, total, frequencies])
def test_shards_of_unequal_size_draw_a_poisson_sample_too(check):
    assert check(shards(40, 0.3), 0.3) > FALSE_ALARM


@pytest.mark.full
@pytest.mark.parametrize(("size", "q"), SHARDED)
@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (across_shards, shards_of_one_stream),
        (sizes, shards_of_one_stream),
        (total, overlapping_shards),
        (frequencies, overlapping_shards),
    ],
)
def test_the_checks_of_shards_can_fail(check, wrong, size, q):
    """Control: shards that are not independent, or not disjoint, are seen."""
    assert check(wrong(size, q), q) < FALSE_ALARM


def gap_p_value(gaps, q, bins=50):
    """Chi-squared over cells of about equal probability."""
    edges = np.unique(stats.geom.ppf(np.arange(1, bins) / bins, q) - 1)
    chances = np.diff(stats.geom.cdf(np.r_[-1, edges, np.inf] + 1, q))
    counts = np.bincount(np.searchsorted(edges, gaps), minlength=len(chances))
    return stats.chisquare(counts, len(gaps) * chances).pvalue


@pytest.mark.parametrize("q", [1e-12, 1e-5, 0.03, 0.12499, 0.125, 0.6])
def test_gaps_are_geometric(q):
    gaps = BernoulliDraw(2**46, q).gaps(200_000, random_words.from_seed(7, 0))

    assert gap_p_value(gaps, q) > FALSE_ALARM


@pytest.mark.parametrize("wrong", [0.9, 1.1])
@pytest.mark.parametrize("q", [1e-5, 0.03, 0.6])
def test_the_check_of_gaps_can_fail(q, wrong):
    """Control: a rate that is 10 % off would have been seen."""
    gaps = BernoulliDraw(2**46, q * wrong).gaps(
        200_000, random_words.from_seed(7, 0)
    )

    assert gap_p_value(gaps, q) < FALSE_ALARM
