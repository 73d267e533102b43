"""Sums and masks are never broadcast, and nests must fit."""

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import GaussianSumQuery, NestedQuery, NoPrivacySumQuery
from keras_dp.dp_queries.dp_query import add
from tests.query_table import answer

# Shapes.


@pytest.mark.parametrize(
    ("template", "records"),
    [
        (tf.zeros([3]), tf.ones([2, 1])),
        (tf.zeros([]), tf.ones([2, 3])),
        (tf.zeros([3]), tf.ones([2])),
        (tf.zeros([2, 3]), tf.ones([2, 3])),
        (tf.zeros([1]), tf.ones([2, 4])),
    ],
)
@pytest.mark.parametrize(
    "query", [GaussianSumQuery(1.0, 0.0), NoPrivacySumQuery()], ids=repr
)
def test_sums_are_never_broadcast(query, template, records):
    """It would repeat a clipped record, and multiply its norm."""
    with pytest.raises(ValueError, match="`records` must"):
        answer(query, template, records)
    with pytest.raises(ValueError, match="`records` must"):
        add(template, records[0])


def test_sums_are_not_broadcast_where_shapes_are_unknown():
    query = GaussianSumQuery(1.0, 0.0)

    @tf.function(
        input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None])]
    )
    def add(records, sample):
        params = query.derive_sample_params(query.initial_global_state(0))
        return query.accumulate_records(params, sample, records)

    assert add(tf.ones([2, 1]), tf.zeros([1])).numpy().tolist() == [2.0]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="must have the template"
    ):
        add(tf.ones([2, 1]), tf.zeros([3]))


@pytest.mark.parametrize(
    "query", [GaussianSumQuery(1.0, 0.0), NoPrivacySumQuery()], ids=repr
)
@pytest.mark.parametrize("size", [0, 1, 3])
def test_masks_are_never_broadcast(query, size):
    with pytest.raises(ValueError, match="`mask` must"):
        answer(query, tf.zeros([3]), tf.ones([2, 3]), np.ones(size, bool))


def test_masks_are_boolean():
    with pytest.raises(TypeError, match="`mask` must"):
        answer(
            GaussianSumQuery(1.0, 0.0),
            tf.zeros([3]),
            tf.ones([2, 3]),
            np.array([1, 0]),
        )


@pytest.mark.parametrize(
    "query", [GaussianSumQuery(1.0, 0.0), NoPrivacySumQuery()], ids=repr
)
def test_leaves_have_one_batch_size(query):
    template = [tf.zeros([3]), tf.zeros([])]

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        answer(query, template, [tf.ones([2, 3]), tf.ones([1])])


@pytest.mark.parametrize(
    "records",
    [
        (tf.ones([2, 3]),),
        [tf.ones([2, 3]), tf.ones([2, 3])],
        {"x": tf.ones([2, 3])},
        tf.ones([2, 3]),
    ],
)
def test_records_have_the_structure_of_the_template(records):
    with pytest.raises(
        ValueError,
        match=r"^`records` must have the structure of the template, which is "
        r"\[\(3,\)\]\. Received: ",
    ) as raised:
        answer(GaussianSumQuery(1.0, 0.0), [tf.zeros([3])], records)
    assert "numpy" not in str(raised.value)  # Shapes, but no data.


def test_a_template_has_leaves():
    for query in (GaussianSumQuery(1.0, 0.0), NoPrivacySumQuery()):
        with pytest.raises(ValueError, match="`template` must"):
            query.initial_sample_state([])


def test_integers_cannot_be_clipped():
    message = r"^`records` must be floating-point tensors .* dtype int32\."
    query = GaussianSumQuery(1.0, 0.0)
    with pytest.raises(TypeError, match=message):
        query.initial_sample_state(tf.zeros([2], tf.int32))
    with pytest.raises(TypeError, match=message):
        answer(query, tf.zeros([2]), tf.ones([3, 2], tf.int32))


# Nests.


@pytest.mark.parametrize(
    "record",
    [
        tf.ones([2]),
        {"a": 0},
        {"a": 0, "b": [1], "c": 2},
        {"a": 0, "b": [1, 2]},
        {"a": 0, "b": {"0": 1}},
        {"a": 0, "b": tf.ones([1])},
    ],
    ids=str,
)
def test_a_record_that_does_not_fit_a_nest(record):
    query = NestedQuery(
        {"a": GaussianSumQuery(1.0, 0.0), "b": [GaussianSumQuery(1.0, 0.0)]}
    )

    with pytest.raises(ValueError, match="`queries` must have"):
        query.initial_sample_state(record)


SUM = GaussianSumQuery(1, 1)


@pytest.mark.parametrize(
    "queries",
    [
        {},
        [[], ()],
        None,
        [SUM, 3],
        {1: SUM},
        {"": SUM},
        {"a/b": SUM, "a": {"b": SUM}},
    ],
    ids=str,
)
def test_nests_that_are_refused(queries):
    with pytest.raises((TypeError, ValueError), match="`queries` must"):
        NestedQuery(queries)
