"""Sums on the grid, whose bound holds in floating point."""

from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import GaussianSumQuery, NestedQuery
from keras_dp.dp_queries.dp_query import add
from keras_dp.noise import grid, xla
from tests.query_table import accumulated


def sums(precision, order, noise_multiplier=1.0):
    """Returns the sum of batches that are added in an order."""
    query = GaussianSumQuery(
        1.0, noise_multiplier=noise_multiplier, precision=precision
    )
    params = query.derive_sample_params(query.initial_global_state(0))
    sample = query.initial_sample_state(tf.zeros([50]))
    batches = np.random.default_rng(1).normal(size=(16, 8, 50))
    for place in order:
        records = tf.constant(batches[place], tf.float32)
        sample = query.accumulate_records(params, sample, records)
    return sample.numpy()


@pytest.mark.parametrize("precisions", [("assumed", "proven"), ("assumed",)])
def test_a_nest_needs_proven_bounds_as_soon_as_one_query_does(precisions):
    nest = NestedQuery(
        [GaussianSumQuery(1.0, 1.0, precision=each) for each in precisions]
    )

    assert nest.is_proven == ("proven" in precisions)


class TestSums:
    @pytest.mark.parametrize(
        ("precision", "noise"),
        [("proven", 1.0), ("assumed", 1.0), ("assumed", 0.0)],
    )
    def test_do_not_depend_on_the_batch_order(self, precision, noise) -> None:
        """Bit by bit; the control are sums without noise, which are floats."""
        there = sums(precision, range(16), noise)
        back = sums(precision, range(15, -1, -1), noise)

        assert np.array_equal(there, back) == bool(noise)

    def test_are_steps_of_the_grid(self) -> None:
        steps = sums("assumed", range(16))
        floats = sums("assumed", range(16), 0.0)

        assert steps.dtype == np.int64
        assert np.abs(steps).max() > 2.0**20
        np.testing.assert_allclose(
            steps * float(grid.spacing(1.0)), floats, rtol=1e-4, atol=1e-6
        )

    def test_large_ones_are_summed_alike(self) -> None:
        """Tensors above the limit are rounded by one compiled loop."""
        size = grid.LEAST_COMPILED_STEPS
        sums = tf.random.stateless_normal([2, size], (1, 2))
        spacing = tf.constant(2.0**-10, tf.float64)
        compiled = xla.compiled.cache_info().misses

        large = grid.steps(sums, spacing)
        small = grid.steps(sums[:, :100], spacing)

        np.testing.assert_array_equal(large[:100], small)
        np.testing.assert_array_equal(
            grid.added(large, large)[:100], 2 * small.numpy()
        )
        assert xla.compiled.cache_info().misses == compiled + 2


class TestBadInput:
    def test_no_noise(self) -> None:
        with pytest.raises(ValueError, match="positive"):
            GaussianSumQuery(1.0, 0.0, precision="proven")

    def test_float64_records(self) -> None:
        query = GaussianSumQuery(1.0, 1.0, precision="proven")

        with pytest.raises(TypeError, match="float32"):
            query.initial_sample_state(tf.zeros([2], tf.float64))

    def test_batches_of_unknown_size(self) -> None:
        query = GaussianSumQuery(1.0, 1.0, precision="proven")
        state = query.initial_global_state(0)

        @tf.function(input_signature=[tf.TensorSpec([None, 2])])
        def sample(records):
            return accumulated(query, state, tf.zeros([2]), records)

        with pytest.raises(ValueError, match="shapes of records"):
            sample(tf.zeros([3, 2]))


class TestLimits:
    @pytest.mark.parametrize("blocks", [3, 5, 7])
    def test_sums_are_cut_off_at_integers(self, blocks) -> None:
        """Else they would not add up without rounding."""
        sums = tf.fill([blocks, 2], 2.0**100)

        steps = grid.steps(sums, tf.constant(1.0, tf.float64))

        assert np.all(steps == blocks * (2**52 // blocks))

    @pytest.mark.parametrize("size", [3, grid.LEAST_COMPILED_STEPS])
    def test_a_sum_that_overflowed_is_within_them(self, size) -> None:
        """Float32 leaves infinity or NaN, which are no integers."""
        row = np.zeros(size, np.float32)
        row[:3] = np.inf, -np.inf, np.nan

        steps = grid.steps(
            tf.constant(row[None]), tf.constant(1.0, tf.float64)
        ).numpy()

        assert steps[:3].tolist() == [2**52, -(2**52), 0]

    @pytest.mark.parametrize("stddev", [1e-30, 1.0, 1e38])
    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    def test_a_sum_is_rounded_to_the_nearest_steps(self, kind, stddev) -> None:
        """Halves are rounded to even, at any size that the type can have."""
        spacing = grid.spacing(stddev)
        g = Fraction(float(spacing))
        exponents = np.arange(-149, 128, dtype=np.float64)
        row = np.ldexp(float(g), np.arange(-4, 60)) * 1.5
        row = np.concatenate([row, -3 * row, np.exp2(exponents)])
        row = row[np.abs(row) < np.finfo(np.float32).max].astype(kind)
        # TensorFlow may take what is less for zero.
        row = row[np.abs(row) >= np.finfo(np.float32).tiny]

        steps = grid.steps(tf.constant(row[None]), spacing).numpy()

        most = 2**52
        assert steps.tolist() == [
            max(-most, min(most, round(Fraction(float(each)) / g)))
            for each in row
        ]
        assert len(set(steps.tolist())) > 50

    def test_batches_are_added_up_to_a_limit(self) -> None:
        """Else int64 would overflow, and one record move a sum by 2^64."""
        large = tf.fill([2], tf.constant(2**52, tf.int64))
        total = tf.zeros([2], tf.int64)
        for _ in range(5000):
            total = grid.added(total, large)

        assert np.all(total == 2**53)

    def test_a_batch_of_floats_is_no_sum_in_steps(self) -> None:
        """It would be cut to integers of another unit."""
        query = GaussianSumQuery(1.0, 1.0)
        empty = query.initial_sample_state(tf.zeros([2]))

        with pytest.raises(TypeError, match="steps of the grid"):
            add(empty, tf.ones([2]))
