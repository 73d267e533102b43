"""Laws of what one record adds to a sum, for any record.

Nothing here has a tolerance but the norm of discretized records: bounds of
encoded ones hold in the floats themselves.
"""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keras_dp.dp_queries.discrete.discretized_sum_query import (
    DiscretizedSumQuery,
)
from keras_dp.dp_queries.discrete.encoded_sum_query import EncodedSumQuery
from keras_dp.ledger import CoordinateBounds
from keras_dp.ledger.events.noise_families import LaplaceNoise
from tests.query_table import accumulated

law = settings(max_examples=150)

ANY = st.floats(width=32)
# Equal, neighbouring and extreme magnitudes, in any order.
TIED = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 1 + 2.0**-23, 2.0**-149, 2.0**-126, -3e38, 3e38]
)
LEVELS = st.one_of(
    st.floats(0, 2.0**127, width=32),
    st.sampled_from([0.0, 1.0, 2.0**-149, 2.0**-9, 3e38]),
)


@st.composite
def records_and_vectors(draw):
    size = draw(st.integers(1, 12))
    elements = draw(st.sampled_from([ANY, TIED]))
    batch = draw(st.integers(1, 4))
    records = draw(hnp.arrays(np.float32, [batch, size], elements=elements))
    count = draw(st.integers(1, 4))
    vectors = draw(hnp.arrays(np.float32, [count, size], elements=LEVELS))
    return records, vectors


def contribution(query, record):
    """Returns what one record adds, without rounding of a sum."""
    return accumulated(
        query,
        query.initial_global_state(0),
        tf.zeros(record.shape),
        tf.constant(record[np.newaxis]),
    ).numpy()


def falling(vectors):
    return -np.sort(-np.abs(vectors), axis=-1)


@pytest.mark.full
@law
@given(records_and_vectors())
def test_a_contribution_is_below_one_of_the_vectors_exactly(case):
    """Sorted, its magnitudes are at most those of one vector, each by each.

    So some order and signs of a vector in the event's bounds cover it.
    """
    records, vectors = case
    bounds = CoordinateBounds.from_vectors(vectors)
    query = EncodedSumQuery(bounds, LaplaceNoise(1.0))
    repeated = np.repeat(bounds.level_array(), bounds.count_array(), axis=1)
    np.testing.assert_array_equal(repeated, falling(vectors))

    for record in records:
        added = falling(contribution(query, record))

        assert (added <= repeated).all(axis=1).any()


@pytest.mark.full
@law
@given(records_and_vectors())
def test_a_contribution_never_exceeds_or_turns_the_record(case):
    """Coordinate by coordinate, it lies between 0 and the record."""
    records, vectors = case
    query = EncodedSumQuery(
        CoordinateBounds.from_vectors(vectors), LaplaceNoise(1.0)
    )

    for record in records:
        added = contribution(query, record)
        if not np.isfinite(record).all():
            assert not added.any()
            continue
        assert (np.abs(added) <= np.abs(record)).all()
        assert (added * np.sign(record) >= 0).all()


@pytest.mark.full
@law
@given(records_and_vectors())
def test_records_below_all_vectors_are_not_changed(case):
    """Clipping only ever shortens, and only what is too long.

    Of subnormal magnitudes, that may be flushed to zero, nothing is said.
    """
    records, vectors = case
    least = falling(vectors).min(axis=0)
    query = EncodedSumQuery(
        CoordinateBounds.from_vectors(vectors), LaplaceNoise(1.0)
    )
    usable = np.where(np.isfinite(records), records, 0)
    usable = np.where(np.abs(usable) < 2.0**-126, 0, usable)
    order = np.argsort(-np.abs(usable), axis=1, kind="stable")
    short = np.zeros_like(usable)
    for row, places, out in zip(usable, order, short, strict=True):
        out[places] = np.sign(row[places]) * np.minimum(
            np.abs(row[places]), np.where(least < 2.0**-126, 0, least)
        )

    for record in short:
        np.testing.assert_array_equal(contribution(query, record), record)


@pytest.mark.full
@law
@given(records_and_vectors(), st.integers(-20, 20))
def test_the_scale_of_a_record_does_not_change_its_match(case, exponent):
    """A longer record is clipped to the same vector, if it was clipped."""
    records, vectors = case
    query = EncodedSumQuery(
        CoordinateBounds.from_vectors(vectors), LaplaceNoise(1.0)
    )
    far = np.float32(2.0**60)
    for record in records:
        if not np.isfinite(record).all():
            continue
        unit = np.abs(record[record != 0])
        if not unit.size or unit.max() > 2**20 or unit.min() < 2.0**-20:
            continue
        one = contribution(query, record * far)
        two = contribution(query, record * far * np.float32(2.0**exponent))
        if (falling(vectors) < 2.0**20).all():
            np.testing.assert_array_equal(one, two)


@pytest.mark.full
@law
@given(
    hnp.arrays(np.float32, st.integers(1, 12), elements=st.one_of(ANY, TIED)),
    st.floats(0, 1e6, width=32),
    st.floats(0, 2.0**40, width=32, allow_subnormal=False),
)
def test_a_discretized_record_is_within_its_clip(record, threshold, clip):
    """By at most a relative 2^-23, in exact arithmetic."""
    query = DiscretizedSumQuery(threshold, clip, 0.0)

    added = contribution(query, record)

    sizes = set(np.abs(added[added != 0]).tolist())
    assert len(sizes) <= 1
    norm = max(sizes, default=0.0) * math.sqrt(np.count_nonzero(added))
    assert norm <= clip * (1 + 2.0**-23)
