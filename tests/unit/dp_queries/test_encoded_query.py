"""Encoded sums against the algorithm, one record and coordinate at a time."""

import math

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries.discrete.encoded_sum_query import EncodedSumQuery
from keras_dp.ledger import CoordinateBounds, GaussianNoise
from keras_dp.ledger.events.noise_families import LaplaceNoise, StudentTNoise
from keras_dp.noise import grid, samplers, seeds
from tests.query_table import ULP, accumulated

NOISE = LaplaceNoise(1.0)
# Shapes far apart: a peak, a slope, a plain, and one that is cut off.
VECTORS = np.array(
    [
        [9, 0.5, 0.5, 0.25, 0, 0],
        [3, 2.5, 2, 1.5, 1, 0.5],
        [2, 2, 2, 2, 2, 2],
        [4, 4, 0, 0, 0, 0],
    ]
)


def encoded(record, vectors):
    """Returns what Algorithm 2 makes of a record, in Python's floats."""
    if not np.isfinite(record).all() or not record.any():
        return np.zeros_like(record)
    order = sorted(range(len(record)), key=lambda i: -abs(record[i]))
    best, most = None, -1.0
    scale = float(np.abs(record).max())
    for vector in vectors:
        psi = sorted(map(abs, vector), reverse=True)
        dot = sum(
            p * (abs(record[i]) / scale)
            for p, i in zip(psi, order, strict=True)
        )
        similarity = dot / math.sqrt(sum(p * p for p in psi))
        if similarity > most:
            best, most = psi, similarity
    result = np.zeros_like(record)
    for rank, i in enumerate(order):
        result[i] = math.copysign(min(best[rank], abs(record[i])), record[i])
    return result


def by_hand(records, vectors=VECTORS):
    return sum(
        (encoded(record, vectors) for record in records),
        np.zeros(records.shape[1]),
    )


def query_of(vectors=VECTORS, noise=NOISE, chunk_bytes=2**26):
    return EncodedSumQuery(
        CoordinateBounds.from_vectors(vectors), noise, chunk_bytes
    )


def got(records, mask=None, *, chunk_bytes=2**26, vectors=VECTORS):
    records = tf.constant(records)
    query = query_of(vectors, chunk_bytes=chunk_bytes)
    return accumulated(
        query,
        query.initial_global_state(0),
        tf.zeros(records.shape[1:], records.dtype),
        records,
        mask,
    ).numpy()


def random_records(batch, size=6, seed=0):
    generator = np.random.default_rng(seed)
    scales = 10 ** generator.uniform(-1, 1.5, [batch, 1])
    shapes = generator.uniform(0.2, 4, [batch, 1])
    normal = generator.standard_normal([batch, size])
    records = np.sign(normal) * np.abs(normal) ** shapes * scales
    return records.astype(np.float32).astype(np.float64)


ADVERSARIAL = {
    "zero": np.zeros(6),
    "minus zero": -np.zeros(6),
    "one-hot": 1e30 * np.eye(6)[4],
    "two-hot": np.array([0, 0, -3, 0, 5, 0]),
    "huge": np.array([3e38, -2e38, 1e38, 1e37, -1e36, 1e35]),
    "tiny": np.array([3e-37, -2e-37, 1e-37, 1e-36, 0, 1e-36]),
    "wide": np.array([1e30, -1e20, 1e10, 1, -1e-10, 1e-20]),
    "increasing": np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
    "a vector": np.array([9, 0.5, 0.5, 0.25, 0, 0]),
    "half a vector, moved": np.array([0.75, -0.25, 1, 1.25, -1.5, 0.5]),
    "nan": np.array([9, np.nan, 9, 9, 9, 9]),
    "inf": np.array([np.inf, 0, 0, 0, 0, 0]),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_one_record_is_what_the_algorithm_makes_of_it(name):
    record = ADVERSARIAL[name].astype(np.float32)[np.newaxis]

    np.testing.assert_array_equal(
        got(record), by_hand(record.astype(np.float64)).astype(np.float32)
    )


@pytest.mark.parametrize("vectors", [1, 3, 50])
@pytest.mark.parametrize("size", [1, 2, 31, 200])
def test_any_number_of_vectors_and_coordinates(vectors, size):
    generator = np.random.default_rng(size)
    shapes = generator.uniform(0, 3, [vectors, 1])
    psi = generator.uniform(0, 1, [vectors, size]) ** shapes
    psi = psi.astype(np.float32).astype(np.float64)
    records = random_records(8, size, seed=vectors)

    np.testing.assert_allclose(
        got(records, vectors=psi),
        by_hand(records, psi),
        rtol=0,
        atol=1e-15 * len(records),
    )


@pytest.mark.parametrize("chunk_bytes", [1, 24, 60, 100, 2**62])
@pytest.mark.parametrize("batch", [0, 1, 5, 12])
def test_any_size_of_a_chunk_gives_the_sum(chunk_bytes, batch):
    """A record has 24 bytes: chunks of one, two, four and all of them."""
    records = random_records(batch)

    np.testing.assert_allclose(
        got(records.astype(np.float32), chunk_bytes=chunk_bytes),
        by_hand(records),
        rtol=0,
        atol=16 * ULP * 9 * batch,
    )


def test_parts_of_a_record_are_one_vector():
    record = random_records(1)[0]
    template = {"w": tf.zeros([2, 2]), "b": [tf.zeros([]), tf.zeros([1])]}
    # Leaves in the order of tf.nest: b first.
    records = {
        "b": [tf.constant(record[:1]), tf.constant(record[1:2])[tf.newaxis]],
        "w": tf.constant(record[2:].reshape(1, 2, 2)),
    }
    query = query_of()

    total = accumulated(
        query,
        query.initial_global_state(),
        template,
        tf.nest.map_structure(lambda leaf: tf.cast(leaf, tf.float32), records),
    )

    flat = np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(total)])
    np.testing.assert_array_equal(flat, encoded(record, VECTORS))


def test_a_vector_of_zeros_is_matched_last_and_bounds_by_zero():
    both = np.array([[0.0, 0.0], [2.0**-100] * 2])

    assert got(np.array([[5.0, 5.0]]), vectors=both).tolist() == [2.0**-100] * 2
    assert got(np.array([[5.0, 5.0]]), vectors=both[:1]).tolist() == [0, 0]


@pytest.mark.parametrize("size", [5, 7])
def test_records_of_another_size_are_refused(size):
    with pytest.raises(ValueError, match="`vectors`, 6"):
        query_of().initial_sample_state([tf.zeros([size - 1]), tf.zeros([])])


class TestReleases:
    @pytest.mark.parametrize(
        "noise",
        [LaplaceNoise(2.0), StudentTNoise(0.5, 9.0), StudentTNoise(3.0, 1.0)],
    )
    def test_add_the_noise_of_the_family(self, noise):
        """The law itself is tested with the samplers."""
        query = query_of(noise=noise)
        state = query.initial_global_state(3)
        total = tf.constant([1.0, 2, 3, 4, 5, 6])

        result = query.get_noised_result(total, state)

        added = result.value - total
        following, own = seeds.split(state.seed, 2)
        drawn = samplers.sample(noise, total, own)
        np.testing.assert_allclose(
            added, drawn, rtol=0, atol=ULP * np.abs(drawn).max() + 6 * ULP
        )
        np.testing.assert_array_equal(result.global_state.seed, following)
        assert (np.abs(drawn) > 1e-3 * noise.scale).any()

    def test_add_gaussian_noise_on_the_grid(self):
        """As a Gaussian sum does, so that low bits tell nothing of the sum."""
        query = query_of(noise=GaussianNoise(2.0))
        state = query.initial_global_state(3)
        total = tf.constant([1.0, 2, 3, 4, 5, 6])

        result = query.get_noised_result(total, state)

        (expected,), following = grid.noised([total], 2.0, state.seed)
        np.testing.assert_array_equal(result.value, expected)
        np.testing.assert_array_equal(result.global_state.seed, following)
        assert (np.abs(result.value - total) > 2e-3).any()
