"""Laws of what one record adds to a sum, for any record.

Nothing here has a tolerance but the norm of discretized records: bounds of
encoded ones hold in the floats themselves.
"""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

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
