"""Hand cases, and records that try to get past the clip."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import (
    GaussianAverageQuery,
    GaussianSumQuery,
    NestedQuery,
    NoPrivacySumQuery,
)
from tests.query_table import ULP, contribution, total

# Cases that can be checked by hand.


@pytest.mark.parametrize(
    ("records", "clip", "expected"),
    [
        ([[6.0, 8.0]], 5.0, [3.0, 4.0]),  # Norm 10, halved.
        ([[3.0, 4.0]], 5.0, [3.0, 4.0]),  # Norm 5, on the bound.
        ([[3.0, 4.0], [6.0, 8.0]], 5.0, [6.0, 8.0]),
        ([[-3.0, 4.0], [9.0, -12.0]], 5.0, [0.0, 0.0]),
        ([[3.0, 4.0], [5.0, 12.0]], 1000.0, [8.0, 16.0]),
        ([[5.0, 12.0], [8.0, 15.0]], 1e-9, [23 / 17e9 / 1.3, 0]),
        ([[3.0, 4.0]], 0.0, [0.0, 0.0]),
    ],
)
def test_pythagorean_records(records, clip, expected):
    records = np.array(records)
    if clip == 1e-9:  # Both are clipped to their directions.
        directions = records / np.array([[13.0], [17.0]])
        expected = 1e-9 * directions.sum(axis=0)

    got = total(GaussianSumQuery(clip, 0.0), tf.constant(records, tf.float32))

    np.testing.assert_allclose(got, expected, rtol=4 * ULP)


def test_the_average_divides_by_its_denominator_only():
    """The realized number of records, 3, is private and plays no part."""
    query = GaussianAverageQuery(5.0, sum_stddev=0.0, denominator=2.0)

    got = total(query, tf.constant([[6.0, 8.0], [1.0, 0.0], [0.0, 2.0]]))

    np.testing.assert_allclose(got, [2.0, 3.0], rtol=4 * ULP)


def test_without_privacy_nothing_is_clipped():
    records = [tf.constant([1e6, -3.0]), tf.constant([[1, 2], [3, 4]])]

    got = total(NoPrivacySumQuery(), records)

    assert float(got[0]) == 999_997.0
    assert got[1].numpy().tolist() == [4, 6]
    assert got[1].dtype == tf.int32


def test_without_privacy_nan_is_not_hidden():
    got = total(NoPrivacySumQuery(), tf.constant([[1.0, np.nan], [1.0, 1.0]]))

    np.testing.assert_array_equal(got, [2.0, np.nan])


# Records that try to get past the clip.

TINY = 2.0**-126  # The smallest normal float32; less may be flushed to 0.
LARGEST = float(np.finfo(np.float32).max)
ADVERSARIES = {
    "zero": [0.0, 0.0, 0.0],
    "largest": [3e38, 3e38, 3e38],
    "huge": [1e38, -1e38, 1e38],
    "square-overflows": [1e20, 1e20, 0.0],
    "square-underflows": [1e-25, 1e-25, 0.0],
    "tiny": [1e-30, 0.0, 1e-30],
    "subnormal": [2.0**-149, 0.0, 2.0**-140],
    "smallest": [TINY, TINY, TINY],
    "one-hot": [0.0, 100.0, 0.0],
    "huge-and-tiny": [1e38, 1e-38, 0.0],
    "equal": [1.0, 1.0, 1.0],
    "nan": [np.nan, 0.0, 0.0],
    "inf": [np.inf, 1.0, 0.0],
    "minus-inf": [-np.inf, 1.0, 0.0],
    "inf-and-nan": [np.inf, np.nan, 0.0],
    "finite-and-nan": [1e38, np.nan, 1.0],
}
# Without a gamma a record is clipped, and with one it is always scaled.
CLIPS = [
    *((clip, None) for clip in (0.0, 1e-35, 1e-6, 1.0, 1e30)),
    *itertools.product((0.0, 1e-12, 1.0, 1e6), (1e-12, 0.01, 1.0, 1e6)),
]


@pytest.mark.parametrize(("clip", "gamma"), CLIPS)
@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.full)]
)
def test_no_record_exceeds_the_clip(name, clip, gamma, jit_compile):
    """Finite ones are scaled down, no further; others count as nothing."""
    record = np.array(ADVERSARIES[name])
    query = GaussianSumQuery(clip, 0.0, gamma=gamma)

    got = _single(query, jit_compile)(tf.constant(record, tf.float32))

    got = got.numpy().astype(np.float64)
    norm = np.linalg.norm(record)
    assert np.linalg.norm(got) <= clip * (1 + 8 * ULP) + TINY
    if not np.isfinite(norm) or norm > LARGEST:
        np.testing.assert_array_equal(got, 0)
        return
    factor, unit = 1 if norm <= clip else clip / norm, 1
    if gamma is not None:
        factor, unit = gamma / (norm + gamma), clip / gamma
    if factor < TINY:
        factor = 0  # Rounded down: a record 1e38 times too long.
    # Below the smallest normal number, digits are lost.
    np.testing.assert_allclose(
        got, record * factor * unit, rtol=8 * ULP, atol=TINY * max(1, unit)
    )


def _single(query, jit_compile):
    def clipped(record):
        return contribution(query, record)

    if not jit_compile:
        return clipped
    # One function per clip, not per record.
    return _compiled_once(query, clipped)


_COMPILED = {}


def _compiled_once(query, function):
    if query not in _COMPILED:
        _COMPILED[query] = tf.function(function, jit_compile=True)
    return _COMPILED[query]


def test_a_bad_part_drops_the_whole_record_of_its_query():
    one, two = tf.constant([[1.0], [2.0]]), tf.constant([np.nan, 1.0])
    joint = total(GaussianSumQuery(9.0, 0.0), [one, two])
    apart = total(
        NestedQuery([GaussianSumQuery(9.0, 0.0), GaussianSumQuery(9.0, 0.0)]),
        [one, two],
    )

    assert [leaf.numpy().tolist() for leaf in joint] == [[2.0], 1.0]
    assert [leaf.numpy().tolist() for leaf in apart] == [[3.0], 1.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_clipped_and_summed_in_float32(dtype):
    """In bfloat16 a sum of ones stops at 256, and a norm with it."""
    got = total(GaussianSumQuery(1.0, 0.0), tf.ones([300, 1000], dtype))

    assert got.dtype == tf.float32
    norms = np.linalg.norm(got.numpy().astype(np.float64))
    assert norms == pytest.approx(300.0, rel=1e-5)


def test_float64_keeps_its_precision():
    records = tf.constant([[6.0, 8.0], [1.0, 1e-9]], tf.float64)

    got = total(GaussianSumQuery(5.0, 0.0), records)

    assert got.dtype == tf.float64
    np.testing.assert_allclose(got, [4.0, 4.0 + 1e-9], rtol=4e-16)


def test_mixed_precision_is_clipped_jointly():
    records = [
        tf.constant([[6.0]], tf.float64),
        tf.constant([[8.0]], tf.float32),
        tf.constant([[0.0]], tf.bfloat16),
    ]

    got = total(GaussianSumQuery(5.0, 0.0), records)

    assert [leaf.dtype for leaf in got] == [tf.float64, tf.float32, tf.float32]
    assert [float(leaf[0]) for leaf in got] == [3.0, 4.0, 0.0]


def test_noise_of_float64_has_float64_digits():
    """The steps of the grid beyond one do not fit float32."""
    query = GaussianSumQuery(1.0, 1.0)
    state = query.initial_global_state(0)

    value = query.get_noised_result(tf.zeros([99], tf.float64), state).value

    assert value.dtype == tf.float64
    assert not np.array_equal(value, value.numpy().astype(np.float32))


def test_records_without_coordinates():
    got = total(GaussianSumQuery(1.0, 0.0), [tf.ones([3, 0]), tf.ones([3, 4])])

    assert got[0].shape == (0,)
    np.testing.assert_allclose(got[1], np.full(4, 1.5), rtol=4 * ULP)
