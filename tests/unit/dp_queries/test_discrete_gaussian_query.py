"""Integer sums with integer noise; bounds are checked in exact arithmetic."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import GaussianSumQuery, NestedQuery
from keras_dp.dp_queries.discrete_gaussian_sum_query import (
    DiscreteGaussianSumQuery,
)
from keras_dp.dp_queries.normalized_query import NormalizedQuery
from keras_dp.ledger import DiscreteGaussianSum, GaussianSum
from tests.query_table import accumulated, contribution, total

# A correctly rounded norm is at most this above the bound.
ROUNDING = Fraction(1) + Fraction(1, 2**53)


def bounded(bound, record):
    """Returns what one record contributes."""
    return contribution(DiscreteGaussianSumQuery(bound, 0.0), record)


def squared_norm(record):
    return sum(int(x) ** 2 for leaf in tf.nest.flatten(record) for x in leaf)


def test_sums_without_noise():
    query = DiscreteGaussianSumQuery(l2_norm_clip=10, scale=0.0)

    got = total(query, tf.constant([[2, 0], [-1, 1]]))

    assert got.dtype == tf.int32
    assert got.numpy().tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("copies", [1, 3])
def test_records_may_be_nests(copies, dtype):
    record = [
        tf.constant([1, 0], dtype),
        {"a": tf.constant([1, 1], dtype), "b": (tf.ones([2, 2], dtype),)},
    ]
    records = tf.nest.map_structure(lambda t: tf.stack([t] * copies), record)

    got = total(DiscreteGaussianSumQuery(10, 0.0), records)

    tf.nest.map_structure(
        lambda one, two: np.testing.assert_array_equal(one, copies * two),
        got,
        record,
    )


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.uint8, tf.bool])
def test_other_dtypes_are_refused(dtype):
    query = DiscreteGaussianSumQuery(10, 0.0)
    state = query.initial_global_state()
    params = query.derive_sample_params(state)

    with pytest.raises(TypeError, match="must be int32 or int64"):
        query.initial_sample_state(tf.zeros([2], dtype))
    with pytest.raises(TypeError, match="must be int32 or int64"):
        query.accumulate_records(
            params, tf.zeros([2], tf.int32), tf.zeros([1, 2], dtype)
        )


@pytest.mark.parametrize(
    ("bound", "record", "expected"),
    [
        (14.2, [10, 10], [10, 10]),  # Its norm is 14.14...
        (14.1, [10, 10], [9, 9]),
        (10, [10, 10], [7, 7]),
        (3, [10, -10], [2, -2]),
        (0, [10, 10], [0, 0]),
        (0, [0, 0], [0, 0]),
        (5, [3, 4], [3, 4]),  # At the bound.
        (math.nextafter(5, 0), [3, 4], [2, 3]),
        (math.sqrt(3), [1, -1, 1], [1, -1, 1]),  # At the rounded bound.
        (1, [-7], [-1]),
        (5, [6, -8], [3, -4]),
        (49, [0, 7 * 49], [0, 49]),
        (2.5, [0, 1000, 0], [0, 2, 0]),
    ],
)
def test_long_records_are_scaled_and_truncated_towards_zero(
    bound, record, expected
):
    got = bounded(bound, tf.constant(record))

    assert got.numpy().tolist() == expected


def test_what_is_long_is_that_of_the_whole_record():
    got = bounded(5.0, {"a": tf.constant([6]), "b": [tf.constant([-8])]})

    assert [int(leaf[0]) for leaf in tf.nest.flatten(got)] == [3, -4]


@pytest.mark.parametrize("size", [10, 2**20, 2**31 - 1, 2**40, 2**62])
@pytest.mark.parametrize("share", [0.9999999, 1e-3, 1e-9])
def test_no_record_exceeds_the_bound_in_exact_arithmetic(size, share):
    generator = np.random.default_rng(1)
    dtype = np.int32 if size < 2**31 else np.int64
    for length in (1, 2, 7, 100):
        record = generator.integers(-size, size, length).astype(dtype)
        norm = math.sqrt(squared_norm([record]))
        bound = share * norm

        got = bounded(bound, tf.constant(record)).numpy()

        limit = (Fraction(bound) * ROUNDING) ** 2
        assert squared_norm([got]) <= limit
        assert (got * np.sign(record) >= 0).all()
        # No coordinate loses more than the truncation and a few ulp.
        lost = np.abs(record) * share - np.abs(got)
        assert (lost <= 1 + 1e-12 * np.abs(record)).all()


def test_a_bound_beyond_all_norms_changes_nothing():
    record = tf.constant([2**63 - 1, -(2**63), 12345678901234567], tf.int64)

    got = bounded(1e30, record)

    assert got.numpy().tolist() == record.numpy().tolist()


def test_int32_squares_do_not_overflow():
    got = bounded(10.0, tf.constant([-(2**31), 2**31 - 1], tf.int32))

    assert got.numpy().tolist() == [-7, 7]


def test_sums_that_do_not_fit_wrap_around():
    """As after noise: the answer is a function of sum plus noise."""
    query = DiscreteGaussianSumQuery(2.0**40, 1000.0)
    largest = 2**31 - 1
    state = query.initial_global_state(3)
    wide, narrow = (
        query.get_noised_result(
            accumulated(
                query,
                state,
                tf.zeros([50], dtype),
                tf.fill([2, 50], tf.constant(largest, dtype)),
            ),
            state,
        ).value
        for dtype in (tf.int64, tf.int32)
    )

    np.testing.assert_array_equal(narrow, wide.numpy().astype(np.int32))
    assert len(np.unique(wide)) > 10


def test_the_event_has_the_bound_and_the_parameter():
    query = DiscreteGaussianSumQuery(9.5, 2.25)
    state = query.initial_global_state()

    (event,) = query.ledger_events(query.planned_event(state), "g")

    assert event == DiscreteGaussianSum("g", 9.5, 2.25)
    assert state._fields == ("seed",)
    assert float(query.derive_sample_params(state)) == 9.5
    assert not query.adapts


def test_noise_is_drawn_anew_for_leaves_and_rounds():
    query = DiscreteGaussianSumQuery(1.0, 1e6)
    state = query.initial_global_state(1)
    sample = [tf.zeros([40], tf.int32)] * 2

    first = query.get_noised_result(sample, state)
    second = query.get_noised_result(sample, first.global_state)

    # 160 draws from some 5e6 integers: few meet, and none at their places.
    draws = np.stack([*first.value, *second.value])
    assert len(np.unique(draws)) > 150


def test_integers_go_beside_floats_in_a_nest():
    query = NestedQuery(
        {
            "counts": NormalizedQuery(DiscreteGaussianSumQuery(5, 0.0), 2),
            "gradients": GaussianSumQuery(5.0, 0.0),
        }
    )
    records = {
        "counts": tf.constant([[3, 4], [1, 1]]),
        "gradients": tf.constant([[6.0, 8.0], [0.0, 1.0]]),
    }

    got = total(query, records)

    assert got["counts"].numpy().tolist() == [2.0, 2.5]
    assert got["gradients"].numpy().tolist() == [3.0, 5.0]
    state = query.initial_global_state()
    events = query.ledger_events(query.planned_event(state), "r")
    assert events == (
        DiscreteGaussianSum("r/counts", 5, 0),
        GaussianSum("r/gradients", 5, 0),
    )


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"l2_norm_clip": -1.0}, ValueError),
        ({"l2_norm_clip": math.inf}, ValueError),
        ({"scale": -1.0}, ValueError),
        ({"scale": 1e-7}, ValueError),
        ({"scale": 2.0**41}, ValueError),
        ({"scale": math.nan}, ValueError),
        ({"scale": None}, TypeError),
    ],
)
def test_impossible_arguments_are_refused(change, error):
    ((name, _),) = change.items()

    with pytest.raises(error, match=f"`{name}` must be"):
        dataclasses.replace(DiscreteGaussianSumQuery(1.0, 1.0), **change)
