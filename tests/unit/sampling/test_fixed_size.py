"""Samples of fixed size: who is drawn, how batches look, what is refused."""

import numpy as np
import pytest

from keras_dp import _reproducible
from keras_dp.ledger import FixedSizeWithoutReplacement
from keras_dp.sampling import (
    FixedSizeBatches,
    Sampler,
    random_words,
)
from keras_dp.sampling.random_words import random_integers, random_subset

SEED = 20


def samples_of(batches, rounds):
    """Returns the records of the first samples, each as a sorted list."""
    found, present = [], []
    for records, mask, ends_sample in batches:
        present += records[mask].tolist()
        if ends_sample:
            found.append(sorted(present))
            present = []
        if len(found) == rounds:
            return found
    raise AssertionError


class TestSamples:
    @pytest.mark.parametrize("size", [1, 3, 5, 9, 10])
    def test_are_subsets_of_the_size(self, size) -> None:
        batches = FixedSizeBatches(np.arange(10), sample_size=size)

        for sample in samples_of(batches, 50):
            assert len(set(sample)) == len(sample) == size

    def test_fill_one_batch_without_padding(self) -> None:
        batches = FixedSizeBatches(np.arange(100), sample_size=7)

        for _, batch in zip(range(20), batches, strict=False):
            assert batch.mask.shape == (7,)
            assert batch.mask.all()
            assert batch.ends_sample

    def test_of_several_batches_always_take_as_many(self) -> None:
        batches = FixedSizeBatches(
            np.arange(100), sample_size=10, physical_batch_size=4
        )

        ends = [
            batch.ends_sample
            for _, batch in zip(range(30), batches, strict=False)
        ]

        assert ends == [False, False, True] * 10

    def test_stand_in_random_rows(self) -> None:
        batches = FixedSizeBatches(np.arange(30), sample_size=30)

        assert any(
            (np.diff(batch.records) < 0).any()
            for _, batch in zip(range(3), batches, strict=False)
        )

    def test_follow_from_a_seed_in_tests_only(self, monkeypatch) -> None:
        def first(seed):
            batches = FixedSizeBatches(
                np.arange(1000), sample_size=20, seed=seed
            )
            assert batches.seeded
            return samples_of(batches, 3)

        again = first(SEED)

        assert first(SEED) == again
        assert first(SEED + 1) != again
        monkeypatch.setattr(_reproducible, "is_on", lambda: False)
        assert first(SEED) != again

    def test_come_from_the_operating_system(self, monkeypatch) -> None:
        asked = []

        def spied(count):
            asked.append(count)
            return np.arange(count, dtype=np.uint64)

        monkeypatch.setattr(random_words, "from_operating_system", spied)
        next(iter(FixedSizeBatches(np.arange(100), sample_size=5)))

        assert asked


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

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"sample_size": 0}, ValueError, "integer >= 1 .*=0"),
            ({"sample_size": 5}, ValueError, "at most 4, the number .*=5"),
            ({"sample_size": 2.0}, TypeError, "an integer. .*=2.0"),
            ({"physical_batch_size": 0}, ValueError, "integer >= 1 .*=0"),
            ({"rounds_per_epoch": 0}, ValueError, "integer >= 1 .*=0"),
            ({"seed": -1}, ValueError, "integer >= 0 .*=-1"),
            ({"map": 3}, TypeError, "a function of one record.*=3"),
        ],
    )
    def test_refuses_other_arguments(self, arguments, error, message) -> None:
        (name,) = arguments
        arguments = {"sample_size": 2, **arguments}

        with pytest.raises(error, match=f"^`{name}` must be .*{message}"):
            FixedSizeBatches(np.ones(4), **arguments)

    def test_needs_a_size(self) -> None:
        with pytest.raises(TypeError, match="'sample_size'"):
            FixedSizeBatches(np.ones(4))

    def test_has_no_shards(self) -> None:
        batches = FixedSizeBatches(np.ones(4), sample_size=2)

        with pytest.raises(ValueError, match="PoissonBatches"):
            batches.shard(0, 2)


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
