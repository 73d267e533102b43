"""Records of a sample stand in uniformly random rows, new in every round.

Seeds are fixed. Had they been free, each check would fail for a correct library
with probability `FALSE_ALARM`. Every check is also shown to fail for placements
that are nearly right.
"""

import functools

import numpy as np
import pytest
from scipy import stats

from keras_dp.sampling import PoissonBatches, UserBatches

FALSE_ALARM = 1e-6
ROUNDS = 6000
RECORDS, PLACES = 6, 8
# Rows of a physical batch: one batch holds the sample, or two do.
PHYSICAL = [8, 4]


# Samplers: each returns the place of each record, [rounds, records]. Places
# count through the rows of all physical batches.


@functools.cache
def library(physical):
    batches = PoissonBatches(
        np.arange(RECORDS),
        sampling_probability=1.0,
        physical_batch_size=physical,
        seed=2026,
    )
    return places_of(batches, RECORDS)


@functools.cache
def users_of_three(physical):
    """Where the first records of users stand."""
    users = np.repeat(np.arange(RECORDS), 3)
    batches = UserBatches(
        users,
        user_ids=users,
        sampling_probability=1.0,
        records_per_user=3,
        physical_batch_size=3 * physical,
        seed=2027,
    )
    return places_of(batches, RECORDS, rows=3)


def places_of(batches, count, rows=1):
    places = np.empty((ROUNDS, count), int)
    iterator = iter(batches)
    for row in places:
        start, ends = 0, False
        while not ends:
            records, mask, ends = next(iterator)
            held = mask[::rows]
            row[records[::rows][held]] = start + np.flatnonzero(held)
            start += len(held)
    return places


def in_order(physical):
    return np.tile(np.arange(RECORDS), (ROUNDS, 1))


def rotated(physical):
    """In the order of the data, from a random row on."""
    start = np.random.default_rng(1).integers(0, PLACES, (ROUNDS, 1))
    return (start + np.arange(RECORDS)) % PLACES


def packed(physical):
    """In a random order, with padding behind it."""
    return np.random.default_rng(2).permuted(in_order(physical), axis=1)


def within_batches(physical):
    """In random rows of the physical batch that the order of data gives."""
    generator = np.random.default_rng(3)
    rows = np.tile(np.arange(PLACES).reshape(-1, 4), (ROUNDS, 1, 1))
    return generator.permuted(rows, axis=2).reshape(ROUNDS, PLACES)[:, :RECORDS]


def every_placement_twice(physical):
    return np.repeat(library(physical)[::2], 2, axis=0)


# Checks: each returns a p-value.


def chi_squared(cells, count):
    return stats.chisquare(np.bincount(cells, minlength=count)).pvalue


def each_place(places):
    """Each record is in each place equally often (Bonferroni)."""
    worst = min(chi_squared(own, PLACES) for own in places.T)
    return min(1.0, RECORDS * worst)


def pairs(places):
    """Two neighbours in the data are in all pairs of places equally often."""
    one, two = places[:, 2], places[:, 3]
    offset = (two - one - 1) % PLACES  # In [0, PLACES - 1): never equal.
    return chi_squared(one * (PLACES - 1) + offset, PLACES * (PLACES - 1))


def rounds(places):
    """Rounds do not know of each other."""
    return chi_squared(places[::2, 0] * PLACES + places[1::2, 0], PLACES**2)


CHECKS = [each_place, pairs, rounds]


@pytest.mark.parametrize("physical", PHYSICAL)
@pytest.mark.parametrize("sampler", [library, users_of_three])
@pytest.mark.parametrize("check", CHECKS)
def test_rows_are_uniform_and_new_in_every_round(check, sampler, physical):
    assert check(sampler(physical)) > FALSE_ALARM


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (each_place, in_order),
        (each_place, packed),
        (each_place, within_batches),
        (pairs, rotated),
        (rounds, in_order),
        (rounds, every_placement_twice),
    ],
)
def test_the_checks_above_can_fail(check, wrong):
    """Control: placements that are nearly right would have been seen."""
    assert check(wrong(4)) < FALSE_ALARM
