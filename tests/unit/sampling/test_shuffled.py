"""Shuffled passes: every record once, ids of their own, what is refused."""

import itertools

import numpy as np

from keras_dp.sampling import ShuffledBatches
from keras_dp.sampling.draw import Pass

SEED = 20


class TestPasses:
    def test_have_ids_of_their_own(self) -> None:
        """Also where a seed makes two iterators draw alike."""

        def ids(batches):
            found = itertools.islice(batches.draws(), 9)
            return [batches.sampling_of(each.pass_).epoch_id for each in found]

        one, two = (
            ids(ShuffledBatches(np.arange(9), batch_size=4, seed=SEED))
            for _ in range(2)
        )

        assert [*map(one.index, one)] == [0, 0, 0, 3, 3, 3, 6, 6, 6]
        assert not {*one} & {*two}

    def test_count_down(self) -> None:
        batches = ShuffledBatches(
            np.arange(9), batch_size=4, physical_batch_size=2
        )

        samples = [*itertools.islice(batches.draws(), 6)]

        assert [each.pass_.rounds_left for each in samples] == [2, 1, 0] * 2
        assert [len(each.rows) for each in samples] == [2, 2, 1] * 2

    def test_say_what_comes(self) -> None:
        batches, of = ShuffledBatches(np.ones(9), batch_size=4), Pass.new()

        coming = batches.planned(7, of)

        assert [count for _, count in coming] == [3, 3, 1]
        assert [event.epoch_id for event, _ in coming] == [
            of._replace(number=number).epoch_id for number in range(3)
        ]
