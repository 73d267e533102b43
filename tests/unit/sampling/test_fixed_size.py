"""Samples of fixed size: who is drawn, how batches look, what is refused."""

import numpy as np

from keras_dp.ledger import FixedSizeWithoutReplacement
from keras_dp.sampling import (
    FixedSizeBatches,
    Sampler,
    random_words,
)
from keras_dp.sampling.random_words import random_integers, random_subset


class TestSamples:
    def test_stand_in_random_rows(self) -> None:
        batches = FixedSizeBatches(np.arange(30), sample_size=30)

        assert any(
            (np.diff(batch.records) < 0).any()
            for _, batch in zip(range(3), batches, strict=False)
        )


class TestSampler:
    def test_event_and_sizes(self) -> None:
        batches = FixedSizeBatches(
            (np.ones([50, 2]), np.ones(50)), sample_size=np.int64(8)
        )

        assert isinstance(batches, Sampler)
        assert batches.sampling_event == FixedSizeWithoutReplacement(
            8, 50, drawn_by_library=True
        )
        assert batches.planned(7) == [(batches.sampling_event, 7)]
        assert batches.expected_sample_size == 8.0
        assert len(batches) == batches.rounds_per_epoch == 6
        assert batches.rounds_per_pass is None
        assert (batches.unit, batches.microbatches) == ("example", None)
        assert "sample_size=8" in repr(batches)


class TestRandomSubset:
    def test_is_drawn_in_time_of_its_size(self) -> None:
        drawn = []

        def words(count):
            drawn.append(count)
            return random_words.from_operating_system(count)

        found = random_subset(10, 2**45, words)

        assert len(set(found.tolist())) == 10
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
