"""Laws of sensitivity, for any records.

Tolerances: a norm and a product in float32 are good to 4 ulp; a sum of n terms
to n ulp of the sum of their sizes.
"""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keras_dp.dp_queries import (
    GaussianAverageQuery,
    GaussianSumQuery,
    NestedQuery,
)
from tests.query_table import accumulated

ULP = 2.0**-23
TINY = 2.0**-126  # The smallest normal float32; less may be flushed to 0.

law = settings(max_examples=150)

ANY = st.floats(width=32, allow_subnormal=False)
CLIPS = st.floats(0, 2.0**40, width=32, allow_subnormal=False)


def batches(elements=ANY, least=1):
    shapes = st.tuples(st.integers(least, 6), st.integers(1, 5))
    return shapes.flatmap(
        lambda shape: hnp.arrays(np.float32, shape, elements=elements)
    )


def bare_sum(clip, records):
    """Returns the sum before noise, in float64."""
    query = GaussianSumQuery(l2_norm_clip=clip, stddev=0.0)
    sample = accumulated(
        query,
        query.initial_global_state(0),
        tf.zeros(records.shape[1:]),
        tf.constant(records),
    )
    return sample.numpy().astype(np.float64)


def moved(clip, records, others):
    return np.linalg.norm(bare_sum(clip, records) - bare_sum(clip, others))


def slack(clip, records):
    return (4 + len(records) ** 2) * ULP * clip + 10 * TINY


@law
@given(batches(), CLIPS)
def test_no_record_exceeds_its_clip(records, clip):
    """The norm of a contribution is at most the clip, whatever the record."""
    contribution = bare_sum(clip, records[:1])

    assert np.linalg.norm(contribution) <= clip * (1 + 4 * ULP) + TINY


@pytest.mark.full
@law
@given(batches(), CLIPS)
def test_adding_a_record_moves_the_sum_by_at_most_the_clip(records, clip):
    """Add or remove one: sensitivity `l2_norm_clip`.

    To replace one is to remove it and to add another.
    """
    assert moved(clip, records, records[:-1]) <= clip + slack(clip, records)


@pytest.mark.full
@law
@given(batches(), batches(), CLIPS, CLIPS)
def test_each_group_of_a_nest_keeps_its_own_bound(one, two, clip_1, clip_2):
    """Whatever one group holds, the other's bound is not touched by it."""
    query = NestedQuery(
        {
            "one": GaussianSumQuery(clip_1, 0.0),
            "two": [GaussianAverageQuery(clip_2, 0.0, denominator=4)],
        }
    )
    batch = min(len(one), len(two))
    records = {"one": one[:batch], "two": [two[:batch]]}
    state = query.initial_global_state(0)
    template = {
        "one": tf.zeros(one.shape[1:]),
        "two": [tf.zeros(two.shape[1:])],
    }

    sample = accumulated(
        query, state, template, tf.nest.map_structure(tf.constant, records)
    )
    answer = query.get_noised_result(sample, state).value

    np.testing.assert_array_equal(answer["one"], bare_sum(clip_1, one[:batch]))
    np.testing.assert_allclose(
        answer["two"][0],
        bare_sum(clip_2, two[:batch]) / 4,
        rtol=ULP,
        atol=TINY,
    )


@pytest.mark.full
@law
@given(batches(), batches(), CLIPS)
def test_a_joint_clip_bounds_the_joint_norm(one, two, clip):
    """The leaves of one record share one clip."""
    query = GaussianSumQuery(clip, 0.0)
    records = [tf.constant(one[:1]), (tf.constant(two[:1]),)]
    template = tf.nest.map_structure(lambda leaf: leaf[0], records)

    sample = accumulated(
        query, query.initial_global_state(0), template, records
    )

    flat = np.concatenate(tf.nest.flatten(sample)).astype(np.float64)
    assert np.linalg.norm(flat) <= clip * (1 + 6 * ULP) + TINY
