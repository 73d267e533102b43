"""What random words decide: the rows of a sample, by enumeration; subsets.

`random_places` looks at the order of random words only, and all orders of
distinct words are equally likely. So all of them are tried.
"""

import collections
import itertools
import math

import numpy as np
import pytest

from keras_dp.sampling import PoissonBatches, RandomMicrobatches, random_words
from keras_dp.sampling.random_words import (
    in_random_rows,
    random_integers,
    random_places,
    random_subset,
)


def orders(places):
    """Yields every order of distinct words, as a source of words."""
    for order in itertools.permutations(range(places)):
        words = np.array(order, np.uint64)
        yield lambda count, words=words: words[:count]


def places_for(count, physical):
    return max(1, -(-count // physical)) * physical


# Microbatches, their rows, and the physical batch size: at most 6 places.
SIZES = [
    *[(1, 1, 1), (1, 1, 4), (2, 1, 3), (3, 1, 3), (3, 1, 2), (4, 1, 3)],
    *[(5, 1, 3), (2, 1, 6), (5, 1, 6), (2, 2, 6), (2, 3, 3)],
]


@pytest.mark.parametrize(("groups", "rows", "physical"), SIZES)
def test_every_placement_is_equally_likely(groups, rows, physical):
    """Of microbatches as wholes. So the others tell nothing of a record.

    Their placements have one distribution, with it and without, as long as
    there are as many physical batches.
    """
    units = np.arange(groups * rows).reshape(groups, rows)
    places = places_for(groups * rows, physical) // rows
    counted = collections.Counter()

    for words in orders(places):
        laid = in_random_rows(units, physical, words).reshape(-1, rows)
        for unit in laid[laid[:, 0] >= 0]:
            assert unit.tolist() in units.tolist()
        counted[tuple(laid[:, 0].tolist())] += 1

    assert len(counted) == math.perm(places, groups)
    assert set(counted.values()) == {math.factorial(places - groups)}


def test_equal_words_are_drawn_again():
    """They have no order."""
    answers = [[3, 1, 3], [2, 2, 2], [5, 0, 9]]
    calls = iter(np.array(answers, np.uint64))

    assert random_places(3, 3, lambda count: next(calls)).tolist() == [1, 0, 2]
    assert list(calls) == []


def test_a_slot_of_random_microbatches_is_a_range_of_rows():
    """Removing a record changes rows of its own slot only, in the same batch.

    Slots are drawn independently by record: with the same draws, the others
    keep their slots.
    """
    layout = RandomMicrobatches(2).draw(8, 1.0)
    fitting = 2 * layout.rows_of_record.rows
    draws = np.random.default_rng(1).integers(0, 2**64, 8, np.uint64)

    def placed(kept):
        laid = layout.placed(kept[:, None], fitting, lambda count: draws[kept])
        return laid.reshape(-1, layout.rows_of_record.rows)

    everyone = placed(np.arange(8))
    for record in range(8):
        others = placed(np.delete(np.arange(8), record))
        assert others.shape == everyone.shape
        own = np.flatnonzero((everyone == record).any(axis=1))
        same = (others == everyone).all(axis=1)
        assert set(np.flatnonzero(~same)) <= set(own)


def test_workers_place_their_own_records_in_rows_of_their_own():
    """Each worker's rows are random, and of its own batches."""
    whole = PoissonBatches(
        np.arange(1, 61),
        sampling_probability=1.0,
        physical_batch_size=72,
        seed=5,
    )
    rows = []
    for index in range(3):
        shard = whole.shard(index, 3)
        records, mask, ends = next(iter(shard))
        assert ends
        assert len(records) == 24
        own = np.array(shard.positions) + 1
        assert sorted(records[mask]) == own.tolist()
        rows.append(np.argsort(records)[-20:].tolist())

    assert len({tuple(each) for each in rows}) == 3
    assert all(each != sorted(each) for each in rows)


class TestRandomSubset:
    def test_is_drawn_in_time_of_its_size(self) -> None:
        drawn = []

        def words(count):
            drawn.append(count)
            return random_words.from_operating_system(count)

        assert len(set(random_subset(10, 2**45, words).tolist())) == 10
        assert sum(drawn) < 100

    def test_draws_again_beyond_the_last_multiple(self) -> None:
        """All words from 2^64 - (2^64 mod 3) on would make 0 more likely."""
        words = iter([[2**64 - 1, 5], [7]])

        found = random_integers(
            2, 3, lambda count: np.array(next(words), np.uint64)
        )

        assert found.tolist() == [2, 1]

    def test_takes_different_ones_in_the_order_of_their_draws(self) -> None:
        """A later, smaller one must not push an earlier one out."""
        draws = [9, 9, 2, 7, 0] + [1] * 10

        found = random_subset(
            3, 100, lambda count: np.array(draws[:count], np.uint64)
        )

        assert found.tolist() == [2, 7, 9]
