"""What every query promises. A new query joins by joining `QUERIES`."""

import collections
import contextvars
import copy
import dataclasses
import itertools
import json
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp._nests import FrozenDict
from keras_dp.dp_queries import LazyRecords, QueryResult
from keras_dp.gradients.records.records import MaterializedRecords
from keras_dp.ledger import FullDataset, Round
from tests.query_table import (
    QUERIES,
    accumulated,
    answer,
    answer_sizes,
    assert_close,
    assert_equal,
    assert_same_state,
    is_noisy,
)

BATCH = 11


def specs(nest):
    return tf.nest.map_structure(
        lambda leaf: (leaf.shape, leaf.dtype.name), nest
    )


def filled(leaf, value):
    """Returns `value` everywhere."""
    return tf.fill(tf.shape(leaf), tf.cast(value, leaf.dtype))


def mutable_parts(value, path=""):
    """Returns where the configuration of a query could be changed in place."""
    if dataclasses.is_dataclass(value):
        parts = []
        for field in dataclasses.fields(value):
            parts.append((field.name, getattr(value, field.name)))
            with pytest.raises(AttributeError):
                setattr(value, field.name, None)
    elif isinstance(value, FrozenDict):
        with pytest.raises(TypeError):
            value["a"] = None
        parts = list(value.items())
    elif isinstance(value, tuple):
        parts = list(enumerate(value))
    else:
        constants = (str, bytes, int, float, tf.TensorSpec, type(None))
        return [] if isinstance(value, constants) else [path]
    return [
        place
        for key, part in parts
        for place in mutable_parts(part, f"{path}/{key}")
    ]


@pytest.mark.parametrize(
    "value", [{"a": 1.0}, ([1.0],), np.ones(1), FrozenDict({"a": {}})]
)
def test_a_part_that_can_be_changed_would_be_found(value):
    assert mutable_parts(value)


class CountingRecords(MaterializedRecords):
    """Lazy records that note what is asked of them."""

    def __init__(self, values, asked=None, *, materializes=False):
        super().__init__(values)
        self.asked = collections.Counter() if asked is None else asked
        self.materializes = materializes

    def squared_norms(self):
        self.asked["norms"] += 1
        return super().squared_norms()

    def weighted_sum(self, weights):
        self.asked["sums"] += 1
        return super().weighted_sum(weights)

    def materialize(self, indices=None):
        assert self.materializes, "Nobody needs the records themselves."
        return super().materialize(indices)

    def scaled(self, factors):
        values = super().scaled(factors).gradients
        return CountingRecords(
            values, self.asked, materializes=self.materializes
        )


def assert_a_graph_agrees(case, *, jit_compile):
    """XLA draws other normals from a seed: only sums can be compared."""
    query, mask = case.noiseless, tf.constant([True] * 9 + [False] * 2)
    state, traces = query.initial_global_state(4), []

    def round_of(state, sample, records, mask):
        traces.append(None)
        params = query.derive_sample_params(state)
        sample = query.accumulate_records(params, sample, records, mask)
        return query.get_noised_result(sample, state)

    sample = query.initial_sample_state(case.template)
    arguments = state, sample, case.records(BATCH), mask
    eager = round_of(*arguments)
    graph = tf.function(round_of, jit_compile=jit_compile)

    result = graph(*arguments)

    assert_equal(eager.event, result.event)
    assert_same_state(eager.global_state, result.global_state)
    assert_close(eager.value, result.value, answer_sizes(case, BATCH))
    graph(result.global_state, sample, case.records(BATCH, seed=1), mask)
    assert len(traces) == 2  # The eager round, and one graph.


# The other queries do in other places of a record, or to their answers, what
# one of these does, or wait for another.
FIRST = {
    "adaptive-scale",
    "discretized",
    "encoded",
    "ks-denoised",
    "nested-1-dict",
    "sum",
}


def _first(first, later):
    """Returns all cases: those of `FIRST` run in a tier before the others."""
    assert {str(case) for case in QUERIES} > FIRST
    for case in QUERIES:
        marks = first if str(case) in FIRST else later
        yield pytest.param(case, marks=marks, id=str(case))


@pytest.mark.parametrize("case", [*_first([], pytest.mark.full)])
def test_graphs_give_the_same_numbers_and_do_not_retrace(case):
    assert_a_graph_agrees(case, jit_compile=False)


@pytest.mark.parametrize(
    "case", [*_first(pytest.mark.full, pytest.mark.nightly)]
)
def test_graphs_of_xla_give_the_same_numbers(case):
    assert_a_graph_agrees(case, jit_compile=True)


@pytest.mark.parametrize("case", QUERIES, ids=str)
class TestContract:
    """Laws that hold for each case of the table."""

    def released(self, case, seed=3):
        state = case.query.initial_global_state(seed)
        sample = accumulated(
            case.query, state, case.template, case.records(BATCH)
        )
        return state, sample, case.query.get_noised_result(sample, state)

    # Releases.

    def test_a_release_is_pure(self, case):
        """The same state gives the same answer, and the same next state."""
        state, sample, first = self.released(case)

        again = case.query.get_noised_result(sample, state)

        assert_equal(first.value, again.value)
        assert_equal(first.global_state, again.global_state)

    def test_the_next_state_gives_another_answer(self, case):
        _, sample, first = self.released(case)

        second = case.query.get_noised_result(sample, first.global_state)

        for owner, one, two in zip(
            case.owners,
            *(tf.nest.flatten(result.value) for result in (first, second)),
            strict=True,
        ):
            noisy = is_noisy(case.events[owner])
            assert np.array_equal(one, two) == (not noisy)

    def test_a_release_has_value_state_and_event(self, case):
        state, _, result = self.released(case)

        assert QueryResult._fields == ("value", "global_state", "event")
        value, next_state, _ = result
        tf.nest.assert_same_structure(value, case.template)
        assert specs(next_state) == specs(state)

    def test_a_release_reports_its_planned_cost(self, case):
        """No event is dropped, renamed or changed, in the next round either."""
        query = case.query
        state, sample, first = self.released(case)
        second = query.get_noised_result(sample, first.global_state)

        assert query.ledger_events(query.planned_event(state), "r") == (
            case.events
        )
        for before, result in (
            (state, first),
            (first.global_state, second),
        ):
            planned = query.planned_event(before)
            assert_equal(planned, result.event)
            Round(FullDataset(), query.ledger_events(planned))  # Valid.

    def test_each_event_has_a_mechanism_of_that_event(self, case):
        state = case.query.initial_global_state(3)
        sample = case.query.initial_sample_state(case.template)

        events = [
            mechanism.query.ledger_events(
                mechanism.query.planned_event(mechanism.global_state), "r"
            )
            for mechanism in case.query.mechanisms(sample, state)
        ]

        assert [
            dataclasses.replace(event, name="r") for (event,) in events
        ] == [
            dataclasses.replace(event, name="r")
            for event in case.query.ledger_events(
                case.query.planned_event(state), "r"
            )
        ]

    def test_an_empty_sample_releases_noise_only(self, case):
        query, state = case.query, case.query.initial_global_state(3)
        result = query.get_noised_result(
            query.initial_sample_state(case.template), state
        )

        assert query.ledger_events(result.event, "r") == case.events
        assert_equal(
            answer(case.noiseless, case.template, case.records(0)),
            case.template,
        )

    def test_seeds_reproduce_and_their_absence_does_not(self, case):
        query = case.query
        seeded = [query.initial_global_state(seed) for seed in (5, 5, 6)]
        fresh = [query.initial_global_state() for _ in range(2)]
        sample = query.initial_sample_state(case.template)
        values = [
            tf.nest.flatten(query.get_noised_result(sample, state).value)
            for state in (*seeded, *fresh)
        ]
        same = [
            all(np.array_equal(x, y) for x, y in zip(*pair, strict=True))
            for pair in itertools.pairwise(values)
        ]

        assert same == [True, *[not case.draws] * 3]

    def test_a_seed_that_is_chosen_twice_repeats_no_noise(self, case):
        """By default; else the difference of two runs would be bare."""
        query = case.query
        sample = query.initial_sample_state(case.template)

        def value():
            state = query.initial_global_state(5)
            return tf.nest.flatten(query.get_noised_result(sample, state).value)

        one, two = (contextvars.Context().run(value) for _ in range(2))

        same = all(np.array_equal(x, y) for x, y in zip(one, two, strict=True))
        assert same == (not case.draws)

    # Sums.

    def test_a_batch_is_the_sum_of_its_records(self, case):
        query, records = case.noiseless, case.records(BATCH)
        state = query.initial_global_state()
        params = query.derive_sample_params(state)
        sample = query.initial_sample_state(case.template)
        for i in range(BATCH):
            record = tf.nest.map_structure(lambda leaf: leaf[i], records)  # noqa: B023
            sample = query.accumulate_record(params, sample, record)

        batch = accumulated(query, state, case.template, records)
        assert_close(batch, sample, case.sizes(BATCH))

    def test_a_batch_is_the_sum_of_two_halves(self, case):
        query, records = case.noiseless, case.records(BATCH)
        state = query.initial_global_state()
        halves = [
            tf.nest.map_structure(lambda leaf: leaf[part], records)  # noqa: B023
            for part in (slice(None, 4), slice(4, None))
        ]
        one, two = (
            accumulated(query, state, case.template, half) for half in halves
        )
        whole = accumulated(query, state, case.template, records)
        sizes = case.sizes(BATCH)

        assert_close(query.merge_sample_states(one, two), whole, sizes)
        chained = query.accumulate_records(
            query.derive_sample_params(state), one, halves[1]
        )
        assert_close(chained, whole, sizes)

    def test_sample_states_keep_their_shape(self, case):
        query, state = case.query, case.query.initial_global_state()
        empty = query.initial_sample_state(case.template)
        full = accumulated(query, state, case.template, case.records(2))

        assert specs(empty) == specs(full)
        assert specs(empty) == specs(query.merge_sample_states(empty, full))

    @pytest.mark.parametrize(
        ("batch", "junk"), [(0, 0.0), (3, 2.0), (3, np.nan)]
    )
    def test_no_records_contribute_exactly_nothing(self, case, batch, junk):
        """Neither an empty batch does, nor padding, whatever it holds."""
        query, state = case.query, case.query.initial_global_state()
        params = query.derive_sample_params(state)
        before = accumulated(query, state, case.template, case.records(5))
        padding = tf.nest.map_structure(
            lambda leaf: filled(leaf, junk), case.records(batch)
        )

        after = query.accumulate_records(
            params, before, padding, tf.zeros([batch], tf.bool)
        )

        assert_equal(before, after)

    @pytest.mark.parametrize("junk", [(np.nan, np.inf), (-np.inf, 3e38)])
    def test_padding_among_records_contributes_nothing(self, case, junk):
        """Each of the two rows of padding holds another junk."""
        query, mask = case.noiseless, np.array([1, 0, 1, 1, 0], bool)

        def padded(one, two):
            def leaf_with(leaf):
                rows = [leaf[i] for i in range(5)]
                rows[1], rows[4] = filled(rows[1], one), filled(rows[4], two)
                return tf.stack(rows)

            return tf.nest.map_structure(leaf_with, case.records(5))

        real = tf.nest.map_structure(lambda leaf: leaf[mask], case.records(5))

        with_junk = answer(query, case.template, padded(*junk), mask)

        with_zeros = answer(query, case.template, padded(0.0, 0.0), mask)
        assert_equal(with_junk, with_zeros)
        without = answer(query, case.template, real)
        assert_close(with_junk, without, answer_sizes(case, 5))

    def test_records_of_another_structure_are_refused(self, case):
        query, records = case.query, case.records(3)
        state = query.initial_global_state()
        taller = tf.nest.map_structure(lambda leaf: leaf[..., None], records)

        for others in ((records,), taller):
            with pytest.raises(ValueError, match="must"):
                accumulated(query, state, case.template, others)

    def lazy(self, case, records):
        return tf.nest.map_structure(
            lambda leaf: CountingRecords(leaf, materializes=case.materializes),
            records,
        )

    def test_lazy_records_give_the_same_answer(self, case):
        records = case.records(BATCH)
        lazy = self.lazy(case, records)
        assert isinstance(tf.nest.flatten(lazy)[0], LazyRecords)

        got = answer(case.noiseless, case.template, lazy)

        expected = answer(case.noiseless, case.template, records)
        assert_close(got, expected, answer_sizes(case, BATCH))
        for leaf in tf.nest.flatten(lazy):
            assert leaf.asked["sums"] == (not case.materializes)
            assert leaf.asked["norms"] <= 1

    # Configuration.

    def test_configuration_survives_json(self, case):
        config = keras.saving.serialize_keras_object(case.query)
        config = json.loads(json.dumps(config))

        loaded = keras.saving.deserialize_keras_object(config)

        assert loaded == case.query
        assert type(loaded) is type(case.query)
        assert hash(loaded) == hash(case.query)
        assert loaded.ledger_events(
            loaded.planned_event(loaded.initial_global_state()), "r"
        ) == (case.events)

    def test_equal_queries_are_interchangeable(self, case):
        for other in (
            copy.deepcopy(case.query),
            pickle.loads(pickle.dumps(case.query)),
        ):
            assert other == case.query
            assert {other: 1}[case.query] == 1

    def test_nothing_in_a_query_can_be_changed(self, case):
        """Else the ledger would state what the compiled step does not do."""
        assert mutable_parts(case.query) == []

    def test_metrics_are_public_scalars(self, case):
        metrics = case.query.derive_metrics(case.query.initial_global_state())

        assert all(metric.shape == () for metric in metrics.values())
