"""Subsets of fixed size are uniform, and rounds independent.

Seeds are fixed. Had they been free, each check would fail for a correct library
with probability `FALSE_ALARM`. Every check is also shown to fail for samplers
that are nearly right.
"""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from keras_dp.sampling import FixedSizeBatches

FALSE_ALARM = 1e-6
ROUNDS = 6000
POPULATION = 6
SIZES = [2, 3, 5]  # 5 draws the one that is left out.


# Samplers: each returns who takes part, a boolean matrix [rounds, records].


@functools.cache
def library(size):
    batches = FixedSizeBatches(
        np.arange(POPULATION), sample_size=size, seed=2026
    )
    takes = np.zeros((ROUNDS, POPULATION), bool)
    for row, batch in zip(takes, batches, strict=False):
        row[batch.records] = True
    return takes


def drawn_twice(size):
    """Repeated draws are dropped: samples are too small now and then."""
    drawn = np.random.default_rng(1).integers(0, POPULATION, (ROUNDS, size))
    takes = np.zeros((ROUNDS, POPULATION), bool)
    np.put_along_axis(takes, drawn, True, axis=1)
    return takes


def biased(size):
    """The least different ones of too many draws, as sorting too early does."""
    takes = np.zeros((ROUNDS, POPULATION), bool)
    generator = np.random.default_rng(2)
    for row in takes:
        row[np.unique(generator.integers(0, POPULATION, 12))[:size]] = True
    return takes


def of_shuffled_passes(size):
    """Batches of a pass are disjoint: rounds know of each other."""
    generator = np.random.default_rng(3)
    takes = np.zeros((ROUNDS, POPULATION), bool)
    order = np.empty(0, int)
    for row in takes:
        if len(order) < size:
            order = generator.permutation(POPULATION)
        row[order[:size]] = True
        order = order[size:]
    return takes


def sets(takes, size):
    """All sets of the size are equally likely (chi-squared)."""
    code = takes @ (1 << np.arange(POPULATION))
    allowed = [
        sum(1 << each for each in chosen)
        for chosen in itertools.combinations(range(POPULATION), size)
    ]
    counts = np.bincount(code, minlength=2**POPULATION)
    if counts.sum() != counts[allowed].sum():
        return 0.0
    return stats.chisquare(counts[allowed]).pvalue


def frequencies(takes, size):
    """Each record takes part as the event says (exact, Bonferroni)."""
    share = size / POPULATION
    least = min(
        stats.binomtest(int(count), ROUNDS, share).pvalue
        for count in takes.sum(axis=0)
    )
    return least * POPULATION


def rounds(takes, size):
    """A record knows nothing of the round before (chi-squared)."""
    share = size / POPULATION
    one, two = takes[0::2], takes[1::2]
    overlap = (one & two).sum(axis=1)
    law = stats.hypergeom(POPULATION, size, size)
    cells = np.arange(max(0, 2 * size - POPULATION), size + 1)
    counts = np.bincount(overlap, minlength=POPULATION + 1)
    expected = len(one) * law.pmf(cells)
    assert math.isclose(expected.sum(), len(one))
    assert 0 < share < 1
    if counts.sum() != counts[cells].sum():
        return 0.0
    return stats.chisquare(counts[cells], expected).pvalue


@pytest.mark.parametrize("check", [sets, frequencies, rounds])
@pytest.mark.parametrize("size", SIZES)
def test_subsets_are_uniform_and_independent(check, size) -> None:
    assert check(library(size), size) > FALSE_ALARM


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (sets, drawn_twice),
        (sets, biased),
        (frequencies, drawn_twice),
        (frequencies, biased),
        (rounds, of_shuffled_passes),
    ],
)
@pytest.mark.parametrize("size", SIZES[:2])
def test_the_checks_can_fail(check, wrong, size) -> None:
    """Control: samplers that are nearly right would have been seen."""
    assert check(wrong(size), size) < FALSE_ALARM
