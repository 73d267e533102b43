"""Noise and clips that change by round, as was planned."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import (
    DiscretizedSumQuery,
    GaussianAverageQuery,
    GaussianSumQuery,
    JointClipQuery,
    KSDenoisedQuery,
    NestedQuery,
    NormalizedQuery,
    ScheduledQuery,
)
from keras_dp.ledger import GaussianSum
from keras_dp.noise import reproducible
from tests.query_table import accumulated

NOISE, CLIP, DIVISOR = [2.0, 1.0, 0.5], [1.0, 0.1, 3.0], [1.0, 4.0, 2.0]
TEMPLATE = tf.zeros([2])
RECORDS = tf.constant([[30.0, 40.0], [0.0, 2.0]])


def scheduled(query=None, rounds=3, **options):
    query = query or GaussianAverageQuery(
        2.0, noise_multiplier=1.5, denominator=4
    )
    options = options or {"noise": NOISE, "clip": CLIP, "divisor": DIVISOR}
    return ScheduledQuery(query, rounds, **options)


def released(query, rounds, records=RECORDS):
    """Yields the state before each round, and its result."""
    state = query.initial_global_state(seed=3)
    for _ in range(rounds):
        sample = accumulated(query, state, TEMPLATE, records)
        result = query.get_noised_result(sample, state)
        yield state, result
        state = result.global_state


class TestEachRound:
    def test_is_that_of_a_query_with_its_numbers(self) -> None:
        with reproducible():
            rounds = list(released(scheduled(), 3))

        for number, (state, result) in enumerate(rounds):
            alone = GaussianAverageQuery(
                2.0 * CLIP[number],
                noise_multiplier=1.5 * NOISE[number],
                denominator=4 * DIVISOR[number],
            )
            # The seed of the round, with the numbers of a query of its own.
            own = alone.initial_global_state()._replace(
                seed=state.query_state.seed
            )
            with reproducible():
                sample = accumulated(alone, own, TEMPLATE, RECORDS)
                want = alone.get_noised_result(sample, own)
            np.testing.assert_allclose(result.value, want.value, rtol=1e-6)
            (event,) = scheduled().ledger_events(result.event, "g")
            (of_alone,) = alone.ledger_events(want.event, "g")
            assert event.l2_norm_bound == pytest.approx(of_alone.l2_norm_bound)
            assert event.noise_stddev == pytest.approx(of_alone.noise_stddev)
            (noise,) = scheduled().result_noise(state, result.value)
            (of_noise,) = alone.result_noise(own, want.value)
            assert float(noise.scale) == pytest.approx(float(of_noise.scale))

    def test_is_what_was_planned_before_the_first(self) -> None:
        query = scheduled()
        planned = query.schedule(query.initial_global_state())

        events = [
            query.ledger_events(event)
            for event, count in planned
            for _ in range(count)
        ]

        assert events == [
            query.ledger_events(result.event)
            for _, result in released(query, 3)
        ]

    def test_adds_up_in_a_plan_of_what_is_left(self) -> None:
        query = scheduled(noise=[1.0, 1.0, 0.5])
        (_, (state, _)) = list(released(query, 2))

        counts = [
            [count for _, count in query.schedule(each)]
            for each in (query.initial_global_state(), state)
        ]

        assert counts == [[2, 1], [1, 1]]

    def test_is_compiled_once(self) -> None:
        query = scheduled()

        @tf.function(jit_compile=True, autograph=False)
        def release(state):
            sample = accumulated(query, state, TEMPLATE, RECORDS)
            return query.get_noised_result(sample, state)

        state = query.initial_global_state()
        for event, _ in query.schedule(state):
            result = release(state)
            assert query.ledger_events(result.event) == query.ledger_events(
                event
            )
            state = result.global_state
        assert release.experimental_get_tracing_count() == 1

    def test_after_the_last_is_refused(self) -> None:
        query = scheduled()
        *_, (_, result) = released(query, 3)

        with pytest.raises(ValueError, match=r"^`rounds` must be at least"):
            query.planned_event(result.global_state)
        assert query.schedule(result.global_state) == []


class TestOtherQueries:
    def test_in_a_nest_keep_their_own_events(self) -> None:
        query = NestedQuery(
            {
                "a": scheduled(GaussianSumQuery(1.0, 2.0), noise=NOISE),
                "b": GaussianSumQuery(3.0, 1.0),
                "c": scheduled(GaussianSumQuery(1.0, 1.0), 2, clip=[1.0, 1.0]),
            }
        )

        planned = query.schedule(query.initial_global_state())

        assert [query.ledger_events(event, "g") for event, _ in planned] == [
            (
                GaussianSum("g/a", 1.0, noise),
                GaussianSum("g/b", 3.0, 1.0),
                GaussianSum("g/c", 1.0, 1.0),
            )
            for noise in (4.0, 2.0)
        ]

    def test_around_it_know_its_end_and_its_noise(self) -> None:
        query = KSDenoisedQuery(NormalizedQuery(scheduled(), 2.0))
        state = query.initial_global_state()

        _, (noise,) = query.released(tf.zeros([2]), state)

        assert len(query.schedule(state)) == 3
        assert float(noise.scale) == pytest.approx(2 * 1.5 * 2 / 4 / 2)

    def test_without_a_schedule_have_none(self) -> None:
        for query in (
            GaussianSumQuery(1.0, 1.0),
            NestedQuery([GaussianSumQuery(1.0, 1.0)]),
        ):
            assert query.schedule(query.initial_global_state()) is None

    def test_of_one_norm_follow_it(self) -> None:
        query = scheduled(
            JointClipQuery([1.0, 2.0], 1.0, 2.0, 1.0, gamma=0.1, rescale=True)
        )
        assert query.inner.gamma == 0.1


def test_a_config_has_the_numbers() -> None:
    decay = keras.optimizers.schedules.PolynomialDecay(1.0, 50, 0.1)
    query = scheduled(rounds=50, noise=decay)

    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(query)
    )

    assert again == query
    assert hash(again) == hash(query)
    assert repr(again) == repr(query)
    assert len(repr(query)) < 300
    assert repr(query) != repr(scheduled(rounds=50, noise=lambda step: 1.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0, "noise": NOISE}, "`rounds` must be"),
        ({"noise": [1.0, 0.0, 1.0]}, "`noise` must be finite and > 0"),
        ({"clip": [1.0, 1.0]}, "`clip` must have a factor for each of the 3"),
        ({"divisor": lambda step: -1.0}, "`divisor` must be finite and > 0"),
        ({"noise": [1e-35] * 3}, "`sum_stddev` must be 0, or in"),
    ],
)
def test_schedules_that_cannot_be_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        scheduled(**options)


@pytest.mark.parametrize(
    "query",
    [
        NormalizedQuery(GaussianSumQuery(1.0, 1.0), 2.0),
        DiscretizedSumQuery(0.1, 1.0, 1.0),
        NestedQuery([GaussianSumQuery(1.0, 1.0)]),
        scheduled(),
    ],
)
def test_queries_of_more_numbers_are_refused(query) -> None:
    with pytest.raises(TypeError, match=r"^`query` must be a Gaussian"):
        scheduled(query)


def test_nothing_to_schedule_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a schedule"):
        ScheduledQuery(GaussianSumQuery(1.0, 1.0), 3)
