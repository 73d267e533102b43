"""Passes are uniformly random orders, independent of each other.

Seeds are fixed. Had they been free, each check would fail for a correct library
with probability `FALSE_ALARM`. Every check is also shown to fail for samplers
that are nearly right.
"""

import functools
import itertools

import numpy as np
import pytest
from scipy import stats

from keras_dp.sampling import ShuffledBatches

FALSE_ALARM = 1e-6
PASSES, RECORDS, SIZE = 8000, 5, 2
BATCHES = 3


# Samplers: each returns the batch of each record, [passes, records].


def batches_of(orders):
    """Returns the batch of each record from the order of the records."""
    return np.argsort(orders, axis=1) // SIZE


@functools.cache
def library():
    found = np.zeros((PASSES, RECORDS), int)
    stream = iter(
        ShuffledBatches(np.arange(RECORDS), batch_size=SIZE, seed=2026)
    )
    for row in found:
        for number in range(BATCHES):
            batch = next(stream)
            row[batch.records[batch.mask]] = number
    return found


def exchanged_with_any():
    """The classical mistake: each place is exchanged with any other."""
    generator = np.random.default_rng(1)
    orders = np.tile(np.arange(RECORDS), (PASSES, 1))
    for place in range(RECORDS):
        other = generator.integers(0, RECORDS, PASSES)
        rows = np.arange(PASSES)
        orders[rows, place], orders[rows, other] = (
            orders[rows, other],
            orders[rows, place],
        )
    return batches_of(orders)


def poisson_like():
    """A record picks its batch alone: batches differ in size."""
    generator = np.random.default_rng(2)
    return np.minimum(generator.integers(0, RECORDS, (PASSES, RECORDS)) // 2, 2)


def shuffled_once():
    generator = np.random.default_rng(3)
    orders = generator.random((PASSES // 2, RECORDS)).argsort(axis=1)
    return batches_of(np.repeat(orders, 2, axis=0))


def partitions(found):
    """All ways to cut the records into the batches are equally likely."""
    wanted = sorted(
        {
            tuple(row)
            for row in batches_of(
                np.array([*itertools.permutations(range(RECORDS))])
            ).tolist()
        }
    )
    counts = dict.fromkeys(wanted, 0)
    for row in map(tuple, found.tolist()):
        if row not in counts:
            return 0.0
        counts[row] += 1
    return stats.chisquare([*counts.values()]).pvalue


def passes(found):
    """The batch of a record tells nothing of the one in the next pass."""
    one, two = found[0::2].ravel(), found[1::2].ravel()
    table = np.zeros((BATCHES, BATCHES))
    np.add.at(table, (one, two), 1)
    return stats.chi2_contingency(table).pvalue


@pytest.mark.parametrize("check", [partitions, passes])
def test_passes_are_uniform_and_independent(check) -> None:
    assert check(library()) > FALSE_ALARM


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (partitions, exchanged_with_any),
        (partitions, poisson_like),
        (passes, shuffled_once),
    ],
)
def test_the_checks_can_fail(check, wrong) -> None:
    """Control: passes that are nearly right would have been seen."""
    assert check(wrong()) < FALSE_ALARM
