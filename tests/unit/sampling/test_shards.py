"""`PoissonBatches.shard` does what its docstring says."""

import numpy as np
import pytest

from keras_dp.sampling import PoissonBatches

SEED = 11


def sampler(size=1000, q=0.1, **options):
    return PoissonBatches(np.arange(size), sampling_probability=q, **options)


def rounds_of(batches, rounds):
    """Returns the records of each of the first rounds."""
    iterator, samples = iter(batches), []
    for _ in range(rounds):
        parts, ends = [], False
        while not ends:
            records, mask, ends = next(iterator)
            parts.append(records[mask])
        samples.append(np.sort(np.concatenate(parts)))
    return samples


@pytest.mark.parametrize(("size", "count"), [(1, 1), (7, 7), (10, 3), (99, 4)])
def test_every_record_is_in_exactly_one_shard(size, count):
    shards = [sampler(size, q=1.0).shard(i, count) for i in range(count)]

    drawn = [rounds_of(shard, 1)[0] for shard in shards]

    np.testing.assert_array_equal(np.concatenate(drawn), np.arange(size))
    for shard, records in zip(shards, drawn, strict=True):
        assert records.tolist() == list(shard.positions)
    sizes = [len(records) for records in drawn]
    assert max(sizes) - min(sizes) <= 1


def test_what_is_told_of_a_round_is_that_of_the_whole():
    whole = sampler(seed=SEED, rounds_per_epoch=7)
    shard = whole.shard(2, 3)

    assert shard.population_size == whole.population_size == 1000
    assert shard.expected_sample_size == whole.expected_sample_size
    assert shard.sampling_event == whole.sampling_event
    assert shard.rounds_per_epoch == 7
    assert shard.seeded
    assert (shard.shard_index, shard.shard_count) == (2, 3)
    assert (whole.shard_index, whole.shard_count) == (None, None)
    assert whole.positions == range(1000)
    assert shard.records is whole.records


@pytest.mark.parametrize(("given", "part"), [(1, 1), (7, 3), (9, 3), (256, 86)])
def test_a_given_physical_batch_size_is_divided_and_rounded_up(given, part):
    whole = sampler(physical_batch_size=given)

    assert whole.shard(0, 3).physical_batch_size == part


def test_streams_of_shards_differ_from_each_other_and_from_the_whole():
    """Each is seen by the draws of 300 records in the same places."""

    def places(index, count):
        shard = sampler(size=300 * count, q=0.5, seed=SEED).shard(index, count)
        return (rounds_of(shard, 1)[0] - shard.positions.start).tobytes()

    keys = [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]
    draws = {places(*key) for key in keys}
    whole = rounds_of(sampler(size=300, q=0.5, seed=SEED), 1)[0].tobytes()

    assert len(draws | {whole}) == len(keys) + 1
