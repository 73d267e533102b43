"""Laws of `PoissonBatches`, for any size, probability and seed."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_dp.sampling import FixedMicrobatches, PoissonBatches

SIZES = st.integers(1, 300)
PROBABILITIES = st.floats(2.0**-60, 1.0) | st.sampled_from([0.1, 0.9, 1.0])
PHYSICAL = st.integers(1, 70)
SEEDS = st.integers(0, 2**40)
ROUNDS = 4

law = settings(max_examples=150)


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
    """Returns who takes part, in the order of the data."""
    return np.sort(np.concatenate([b.records[0][b.mask] for b in sample]))


@law
@given(SIZES, PROBABILITIES, PHYSICAL, SEEDS)
def test_samples_are_subsets(size, q, physical, seed):
    """No record occurs twice, none is out of range."""
    for sample in rounds_of(size, q, physical, seed):
        indices = indices_of(sample)
        assert (np.diff(indices) > 0).all()
        assert ((indices >= 0) & (indices < size)).all()


@law
@given(SIZES, PROBABILITIES, PHYSICAL, SEEDS)
def test_a_sample_takes_as_few_batches_as_hold_it(size, q, physical, seed):
    """Whatever the rows: a sample of n takes `max(1, ceil(n / physical))`."""
    for sample in rounds_of(size, q, physical, seed):
        count = sum(int(batch.mask.sum()) for batch in sample)
        assert len(sample) == max(1, -(-count // physical))
        for batch in sample:
            assert batch.mask.shape == (physical,)


@pytest.mark.full
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


@pytest.mark.full
@law
@given(SIZES, PROBABILITIES, PHYSICAL, PHYSICAL, SEEDS)
def test_physical_batches_do_not_change_samples(size, q, one, two, seed):
    """Neither rows nor batches have an influence on who takes part."""
    samples = rounds_of(size, q, one, seed)
    for sample, other in zip(
        samples, rounds_of(size, q, two, seed), strict=True
    ):
        np.testing.assert_array_equal(indices_of(sample), indices_of(other))


@law
@given(st.integers(1, 40), st.integers(1, 5), PROBABILITIES, PHYSICAL, SEEDS)
def test_fixed_microbatches_stay_in_consecutive_rows(
    groups, rows, q, physical, seed
):
    """Each is in the sample as a whole, in the order of its records."""
    batches = PoissonBatches(
        np.arange(groups * rows),
        sampling_probability=q,
        physical_batch_size=physical * rows,
        microbatches=FixedMicrobatches(rows),
        seed=seed,
    )

    for records, mask, _ in itertools.islice(batches, ROUNDS):
        held = mask.reshape(-1, rows)
        np.testing.assert_array_equal(held, held[:, :1].repeat(rows, axis=1))
        microbatches = records.reshape(-1, rows)[held[:, 0]]
        np.testing.assert_array_equal(
            microbatches, microbatches[:, :1] + np.arange(rows)
        )
        assert (microbatches[:, 0] % rows == 0).all()
        assert len(set(microbatches[:, 0])) == len(microbatches)
