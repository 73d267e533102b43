"""Laws of `PoissonBatches`, for any size, probability and seed."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_dp.sampling import PoissonBatches

SIZES = st.integers(1, 300)
PROBABILITIES = st.floats(2.0**-60, 1.0) | st.sampled_from([0.1, 0.9, 1.0])
PHYSICAL = st.integers(1, 70)
SEEDS = st.integers(0, 2**40)
ROUNDS = 4

law = settings(derandomize=True, max_examples=150, deadline=None)


def rounds_of(size, q, physical, seed):
    """Returns the physical batches of each of the first rounds."""
    batches = iter(
        PoissonBatches(
            (np.arange(size), np.arange(1.0, size + 1)),
            sampling_probability=q,
            physical_batch_size=physical,
            seed=seed,
        )
    )
    rounds = []
    for _ in range(ROUNDS):
        rounds.append([next(batches)])
        while not rounds[-1][-1].ends_sample:
            rounds[-1].append(next(batches))
    return rounds


def indices_of(sample):
    return np.concatenate([b.records[0][b.mask] for b in sample])


@law
@given(SIZES, PROBABILITIES, PHYSICAL, SEEDS)
def test_samples_are_ordered_subsets(size, q, physical, seed):
    """No record occurs twice, none is out of range, order is that of data."""
    for sample in rounds_of(size, q, physical, seed):
        indices = indices_of(sample)
        assert (np.diff(indices) > 0).all()
        assert ((indices >= 0) & (indices < size)).all()


@law
@given(SIZES, PROBABILITIES, PHYSICAL, SEEDS)
def test_batches_are_full_but_for_the_last(size, q, physical, seed):
    """The mask is a prefix; a sample of n is `max(1, ceil(n / physical))`."""
    for sample in rounds_of(size, q, physical, seed):
        counts = [int(batch.mask.sum()) for batch in sample]
        assert len(sample) == max(1, -(-sum(counts) // physical))
        assert all(count == physical for count in counts[:-1])
        for batch, count in zip(sample, counts, strict=True):
            assert batch.mask.shape == (physical,)
            assert batch.mask[:count].all()


@law
@given(SIZES, PROBABILITIES, PHYSICAL, SEEDS)
def test_leaves_stay_together_and_padding_is_zero(size, q, physical, seed):
    """Each leaf holds the same records, and zeros where the mask is false."""
    for batch in itertools.chain(*rounds_of(size, q, physical, seed)):
        first, second = batch.records
        assert first.shape == second.shape == (physical,)
        np.testing.assert_array_equal(
            second, np.where(batch.mask, first + 1.0, 0.0)
        )


@law
@given(SIZES, PROBABILITIES, PHYSICAL, PHYSICAL, SEEDS)
def test_physical_batches_do_not_change_samples(size, q, one, two, seed):
    """How a sample is cut up has no influence on who is in it."""
    samples = rounds_of(size, q, one, seed)
    for sample, other in zip(
        samples, rounds_of(size, q, two, seed), strict=True
    ):
        np.testing.assert_array_equal(indices_of(sample), indices_of(other))
