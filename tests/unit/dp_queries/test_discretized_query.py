"""Discretized sums against the algorithm, coordinate by coordinate."""

import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries.discrete.discretized_sum_query import (
    DiscretizedSumQuery,
)
from keras_dp.ledger import ProvenGaussianSum
from tests.query_table import accumulated, answer

THRESHOLD, CLIP = 0.5, 1.5
# Each contribution is good to an ulp, and a sum of a dozen to a few more.
TOLERANCE = 16 * 2.0**-23


def by_hand(records, threshold=THRESHOLD, clip=CLIP):
    """Returns the sum of Algorithms 1 and 2, in Python's floats."""
    total = np.zeros(records.shape[1])
    for record in records:
        if not np.isfinite(record).all():
            continue
        ternary = [
            1.0 if v > threshold else -1.0 if v < -threshold else 0.0
            for v in record
        ]
        norm = math.sqrt(sum(v * v for v in ternary))
        for i, v in enumerate(ternary):
            total[i] += v * clip / max(clip, norm)
    return total


def got(records, mask=None, *, chunk_bytes=2**26, clip=CLIP, dtype=tf.float32):
    query = DiscretizedSumQuery(THRESHOLD, clip, 0.0, chunk_bytes)
    template = tf.zeros(records.shape[1:], dtype)
    records = tf.constant(records, dtype)
    return answer(query, template, records, mask).numpy()


def assert_near(one, two, batch):
    np.testing.assert_allclose(one, two, rtol=0, atol=TOLERANCE * batch * CLIP)


def random_records(batch, size, seed=0):
    return np.random.default_rng(seed).normal(0, 0.7, [batch, size])


ADVERSARIAL = {
    "zero": np.zeros(6),
    "minus zero": -np.zeros(6),
    "at the threshold": np.array([0.5, -0.5, 0.5, -0.5, 0.5, 0.5]),
    "just above it": np.full(6, np.nextafter(np.float32(0.5), np.float32(1))),
    "just below it": np.full(6, np.nextafter(np.float32(0.5), np.float32(0))),
    "just below minus it": np.full(
        6, np.nextafter(np.float32(-0.5), np.float32(-1))
    ),
    "huge": np.array([3e38, -3e38, 3e38, 3e38, 3e38, -3e38]),
    "tiny": np.full(6, 1e-38),
    "one-hot": np.eye(6)[2] * 1e30,
    "nan": np.array([9, np.nan, 9, 9, 9, 9]),
    "inf": np.array([np.inf, 0, 0, 0, 0, 0]),
    "minus inf": np.array([9, 9, 9, 9, 9, -np.inf]),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_one_record_is_what_the_algorithm_makes_of_it(name):
    record = ADVERSARIAL[name][np.newaxis]

    assert_near(got(record), by_hand(record), 1)


@pytest.mark.parametrize("chunk_bytes", [1, 4, 100, 250, 1000, 2**20, 2**62])
@pytest.mark.parametrize("batch", [0, 1, 2, 7, 12])
def test_any_size_of_a_chunk_gives_the_sum(chunk_bytes, batch):
    """A record has 40 bytes: chunks of one, two, six and all of them."""
    records = random_records(batch, 10)

    assert_near(got(records, chunk_bytes=chunk_bytes), by_hand(records), batch)


def test_float64_records_are_compared_and_summed_in_float64():
    above = np.nextafter(0.5, 1)  # float32 would round it to the threshold.
    records = np.array([[above, 0.5, -above, 3.0]])

    wide = got(records, dtype=tf.float64)

    assert wide.dtype == np.float64
    np.testing.assert_allclose(
        wide, np.array([1, 0, -1, 1]) * 1.5 / math.sqrt(3), rtol=4e-16
    )
    assert got(records)[0] == 0  # Control.


def test_float64_thresholds_keep_their_digits():
    query = DiscretizedSumQuery(0.1, CLIP, 0.0)  # Not a float32.
    records = tf.constant([[0.1, np.nextafter(0.1, 1)]], tf.float64)

    total = answer(query, tf.zeros([2], tf.float64), records)

    assert total.numpy().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000, 99_991])
@pytest.mark.parametrize("clip", [0.0, 0.1, 1.0, 3.0, 1e10])
def test_a_clipped_record_is_as_long_as_stated(size, clip):
    """At most a relative 2^-23 longer than its clip, in exact arithmetic."""
    record = np.full([1, size], -2.0)

    (value,) = set(got(record, clip=clip).tolist())

    norm = abs(value) * math.sqrt(size)
    assert norm <= clip * (1 + 2**-23)
    expected = min(clip, math.sqrt(size))  # Short records stay as they are.
    assert norm == pytest.approx(expected, rel=2**-22)


class TestSteps:
    def sums(self, records, mask=None, noise_multiplier=1.0):
        query = DiscretizedSumQuery(
            THRESHOLD,
            CLIP,
            noise_multiplier=noise_multiplier,
            precision="proven",
        )
        state = query.initial_global_state()
        template = tf.zeros(records.shape[1:])
        steps = accumulated(query, state, template, records, mask)
        return steps.numpy(), query.derive_sample_params(state).spacing

    @pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 7.7])
    def test_moves_integers_by_at_most_the_clip(self, noise_multiplier) -> None:
        """In exact arithmetic, and nearly by the clip if it is long."""
        records = random_records(40, 30).astype(np.float32)
        for size in range(31):
            records[0] = np.where(np.arange(30) < size, 1e30, 0)
            mask = np.arange(40) != 0
            (whole, spacing), (rest, _) = (
                self.sums(tf.constant(records), each, noise_multiplier)
                for each in (None, tf.constant(mask))
            )
            squares = sum(int(x) ** 2 for x in whole - rest)
            bound = (Fraction(CLIP) / Fraction(float(spacing))) ** 2
            assert whole.dtype == np.int64
            assert squares <= bound
            assert size < 3 or squares >= bound * (1 - Fraction(1, 2**18))

    def test_are_near_the_sums_without_noise(self) -> None:
        records = random_records(40, 30)
        steps, spacing = self.sums(tf.constant(records, tf.float32))

        assert_near(steps * float(spacing), by_hand(records), 40)

    def test_of_proven_precision_say_so(self) -> None:
        query = DiscretizedSumQuery(0.1, 1.0, 1.0, precision="proven")
        event = query.planned_event(query.initial_global_state())

        assert isinstance(query.ledger_events(event)[0], ProvenGaussianSum)
        with pytest.raises(TypeError, match="float32"):
            query.initial_sample_state(tf.zeros([2], tf.float64))
