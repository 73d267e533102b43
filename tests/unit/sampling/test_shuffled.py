"""Shuffled passes: every record once, ids of their own, what is refused."""

import itertools

import numpy as np
import pytest

from keras_dp.ledger import DisjointBatches
from keras_dp.sampling import Sampler, ShuffledBatches
from keras_dp.sampling.sampler import Pass

SEED = 20


def passes_of(batches, count):
    """Returns the records of the first passes, a list of samples each."""
    found, samples, present = [], [], []
    for batch in batches:
        present += batch.records[batch.mask].tolist()
        if batch.ends_sample:
            samples.append(present)
            present = []
        if len(samples) == batches.rounds_per_pass:
            found.append(samples)
            samples = []
        if len(found) == count:
            return found
    raise AssertionError


class TestPasses:
    @pytest.mark.parametrize("size", [1, 3, 4, 10])
    @pytest.mark.parametrize("physical", [None, 2])
    def test_hold_every_record_once(self, size, physical) -> None:
        batches = ShuffledBatches(
            np.arange(10), batch_size=size, physical_batch_size=physical
        )

        for samples in passes_of(batches, 3):
            assert [len(each) for each in samples[:-1]] == [size] * (
                len(samples) - 1
            )
            assert sorted(itertools.chain(*samples)) == list(range(10))

    def test_are_shuffled_each_anew(self) -> None:
        batches = ShuffledBatches(np.arange(50), batch_size=50, seed=SEED)

        orders = [samples[0] for samples in passes_of(batches, 4)]

        assert all(one != two for one, two in itertools.combinations(orders, 2))
        assert list(range(50)) not in orders

    def test_have_ids_of_their_own(self) -> None:
        """Also where a seed makes two iterators draw alike."""

        def ids(batches):
            found = itertools.islice(batches.rounds_of_passes(), 9)
            return [batches.sampling_of(of).epoch_id for _, of in found]

        one, two = (
            ids(ShuffledBatches(np.arange(9), batch_size=4, seed=SEED))
            for _ in range(2)
        )

        assert [*map(one.index, one)] == [0, 0, 0, 3, 3, 3, 6, 6, 6]
        assert not {*one} & {*two}

    def test_of_two_iterators_are_different_passes(self) -> None:
        """A record may be in both: they must not share an id."""
        batches = ShuffledBatches(np.arange(9), batch_size=4)

        (_, one), (_, two) = (
            next(batches.rounds_of_passes()) for _ in range(2)
        )

        assert one.epoch_id != two.epoch_id

    def test_count_down(self) -> None:
        batches = ShuffledBatches(
            np.arange(9), batch_size=4, physical_batch_size=2
        )

        left = [
            of.rounds_left
            for _, of in itertools.islice(batches.rounds_of_passes(), 10)
        ]

        assert left == [2, 2, 1, 1, 0, 2, 2, 1, 1, 0]


class TestSampler:
    def test_event_and_sizes(self) -> None:
        batches = ShuffledBatches(np.ones(50), batch_size=np.int64(8))
        of = Pass.new()

        assert isinstance(batches, Sampler)
        assert batches.sampling_of(of) == DisjointBatches(
            of.epoch_id, drawn_by_library=True
        )
        assert batches.expected_sample_size == 8.0
        assert len(batches) == batches.rounds_per_pass == 7
        assert batches.physical_batch_size == 8
        assert "batch_size=8" in repr(batches)

    def test_says_what_comes(self) -> None:
        batches, of = ShuffledBatches(np.ones(9), batch_size=4), Pass.new()

        coming = batches.planned(7, of)

        assert [count for _, count in coming] == [3, 3, 1]
        assert [event.epoch_id for event, _ in coming] == [
            of._replace(number=number).epoch_id for number in range(3)
        ]

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"batch_size": 0}, ValueError, "integer >= 1 .*=0"),
            ({"batch_size": 5}, ValueError, "at most 4, the number .*=5"),
            ({"physical_batch_size": 0}, ValueError, "integer >= 1 .*=0"),
            ({"seed": -1}, ValueError, "integer >= 0 .*=-1"),
        ],
    )
    def test_refuses_other_arguments(self, arguments, error, message) -> None:
        (name,) = arguments
        arguments = {"batch_size": 2, **arguments}

        with pytest.raises(error, match=f"^`{name}` must be .*{message}"):
            ShuffledBatches(np.ones(4), **arguments)
