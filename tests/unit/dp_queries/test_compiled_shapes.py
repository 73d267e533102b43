"""Guards of shapes hold where XLA leaves assertions out."""

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import (
    DiscretizedSumQuery,
    GaussianSumQuery,
    JointClipQuery,
)
from keras_dp.dp_queries import records as records_lib

QUERIES = {
    "sum": GaussianSumQuery(1.0, 0.0),
    "joint": JointClipQuery(1.0, 1.0, 0.0, 1.0),
    "discretized": DiscretizedSumQuery(0.5, 1.0, 0.0),
}
UNKNOWN = [tf.TensorSpec([None, None])]


def summed(query, size, signature):
    @tf.function(input_signature=signature, jit_compile=True)
    def total(records):
        return query.accumulate_records(
            query.derive_sample_params(query.initial_global_state(0)),
            query.initial_sample_state(tf.zeros([size])),
            records,
        )

    return total


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
class TestUnknownShapes:
    def test_a_short_record_is_not_repeated(self, query) -> None:
        """Repeated a hundred times, its norm would be ten times the clip."""
        with pytest.raises((tf.errors.OpError, ValueError)):
            summed(query, 100, UNKNOWN)(tf.ones([1, 1]))

    def test_one_that_fits_is_summed(self, query) -> None:
        total = summed(query, 4, UNKNOWN)(tf.ones([3, 4]))

        np.testing.assert_allclose(total, [1.5] * 4)


def test_leaves_of_other_batches_are_refused() -> None:
    """A single record must not stand for the whole batch of another leaf."""
    query = DiscretizedSumQuery(0.5, 1.0, 0.0)

    @tf.function(
        input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([None, 2])],
        jit_compile=True,
    )
    def total(one, two):
        return query.accumulate_records(
            query.derive_sample_params(query.initial_global_state(0)),
            query.initial_sample_state([tf.zeros([2]), tf.zeros([2])]),
            [one, two],
        )

    with pytest.raises((tf.errors.OpError, ValueError)):
        total(tf.ones([8, 2]), tf.ones([1, 2]))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_norms_of_a_million_coordinates_keep_small_ones(jit_compile) -> None:
    """Added up one after the other in float32, they would be lost."""
    record = np.full(2**20, 2.0**-12.6, np.float32)
    record[:64] = 1.0
    exact = np.sqrt(np.square(record.astype(np.float64)).sum())

    @tf.function(jit_compile=jit_compile)
    def norms(records):
        return records_lib.norms([records])

    got = float(norms(tf.constant(record[np.newaxis]))[0])

    assert abs(got / exact - 1) < 2.0**-23
