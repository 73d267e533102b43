"""Queries over a public constant."""

import tensorflow as tf

from keras_dp.dp_queries import (
    GaussianAverageQuery,
    GaussianSumQuery,
    NoPrivacySumQuery,
)
from keras_dp.dp_queries.adaptive.adaptive_clips import AdaptiveClipSumQuery
from keras_dp.dp_queries.wrapping_query import NormalizedQuery
from tests.query_table import accumulated

RECORDS = tf.constant([[-6.0, 8.0], [4.0, -3.0]])  # The first is clipped.


def test_an_average_is_a_normalized_sum():
    """Bit by bit, noise, cost and noise in the answer included."""
    one = NormalizedQuery(GaussianSumQuery(5.0, 3.0), 4.0)
    two = GaussianAverageQuery(5.0, 3.0, 4.0)
    states = [query.initial_global_state(7) for query in (one, two)]

    results = [
        query.get_noised_result(
            accumulated(query, state, RECORDS[0], RECORDS), state
        )
        for query, state in zip((one, two), states, strict=True)
    ]

    values = [result.value.numpy().tolist() for result in results]
    assert values[0] == values[1]
    events = [q.ledger_events(r.event) for q, r in zip((one, two), results)]  # noqa: B905
    assert events[0] == events[1]
    noises = [
        query.result_noise(state, result.value)
        for query, state, result in zip((one, two), states, results)  # noqa: B905
    ]
    assert [noise.scale for (noise,) in noises] == [0.75, 0.75]
    assert noises[0][0].family == noises[1][0].family


def test_metrics_and_adaptation_are_those_of_the_numerator():
    query = NormalizedQuery(AdaptiveClipSumQuery(2.0, 1.0, 1.0, 2), 2)

    assert query.adapts
    assert not NormalizedQuery(NoPrivacySumQuery(), 2).adapts
    metrics = query.derive_metrics(query.initial_global_state())
    assert {k: float(v) for k, v in metrics.items()} == {"clip": 2.0}
