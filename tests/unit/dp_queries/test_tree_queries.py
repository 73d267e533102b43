"""Trees of noise, by hand and against sums over explicit nodes.

Vectors come from the tests of TensorFlow Privacy's tree queries: noise that is
the same constant for every node.
"""

import dataclasses
import functools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import GaussianSumQuery, NestedQuery
from keras_dp.dp_queries.restart_query import RestartQuery
from keras_dp.dp_queries.tree_residual_sum_query import TreeResidualSumQuery
from keras_dp.ledger import TreeSum
from keras_dp.noise import tree_noise
from keras_dp.optimizers.state import StateVariables
from tests.query_table import accumulated

SCALAR = tf.TensorSpec([])


def constant_noise(rounds, value, *, max_levels=12):
    """Returns the noise of each prefix if every node has the same."""
    noise = tree_noise.initial(
        [tf.zeros([])], max_levels, tf.constant([1, 2, 3, 4], tf.int64)
    )

    @tf.function
    def step(noise):
        return tree_noise.following(
            noise, lambda _: [tf.constant(value, tf.float64)]
        )

    values = []
    for _ in range(rounds):
        (total,), noise = step(noise)
        values.append(float(total))
    return values


@pytest.mark.full
@pytest.mark.parametrize(
    ("rounds", "expected", "value"),
    [
        (1, 1.0, 1.0),
        (2, 4 / 3, 1.0),
        (3, 4 / 3 + 1, 1.0),
        (4, 12 / 7, 1.0),
        (5, 12 / 7 + 1, 1.0),
        (6, 12 / 7 + 4 / 3, 1.0),
        (7, 12 / 7 + 4 / 3 + 1, 1.0),
        (8, 32 / 15, 1.0),
        (1024, 11 / (2 - 0.5**10), 1.0),
        (1025, 11 / (2 - 0.5**10) + 1, 1.0),
        (1027, 11 / (2 - 0.5**10) + 4 / 3 + 1, 1.0),
        (1028, (11 / (2 - 0.5**10) + 12 / 7) * 0.5, 0.5),
    ],
)
def test_an_efficient_node_weighs_its_descendants(rounds, expected, value):
    got = _efficient_constants(value)[rounds - 1]

    assert got == pytest.approx(expected, rel=1e-6)  # 10 sums in float32.


@functools.cache
def _efficient_constants(value):
    return constant_noise(1028, value)


def coefficients(rounds):
    """Returns what each draw adds to each prefix, by one draw per entry.

    The `k`-th draw of a run is the `k`-th unit vector.
    """
    size = 2 * rounds
    drawn = tf.Variable(0, dtype=tf.int32)

    def draw(seed):
        del seed
        unit = tf.one_hot(drawn, size, dtype=tf.float64)
        drawn.assign_add(1)
        return [unit]

    noise = tree_noise.initial(
        [tf.zeros([size])], 8, tf.constant([1, 2, 3, 4], tf.int64)
    )
    rows = []
    for _ in range(rounds):
        (total,), noise = tree_noise.following(noise, draw)
        rows.append(total.numpy())
    return np.array(rows, np.float64)


def expected_variance(rounds):
    """Returns the best variance of a prefix, by least squares on its blocks.

    A block's sum is estimated from the noised sums of all nodes within it,
    for unknown leaves: generalized least squares on the design matrix of the
    nodes is the definition of the best linear unbiased estimate.
    """
    total, start = 0.0, 0
    for level in reversed(range(rounds.bit_length())):
        if not rounds >> level & 1:
            continue
        leaves = 2**level
        start += leaves
        design = [
            [1.0 * (first <= leaf < first + block) for leaf in range(leaves)]
            for block in (2**k for k in range(level + 1))
            for first in range(0, leaves, block)
        ]
        inverse = np.linalg.inv(np.transpose(design) @ design)
        total += np.ones(leaves) @ inverse @ np.ones(leaves)
    assert start == rounds
    return total


def test_prefixes_have_the_least_variance():
    """Of all unbiased estimates from the nodes of the blocks of a prefix."""
    rows = coefficients(21)

    got = np.square(rows).sum(axis=1)

    expected = [expected_variance(t) for t in range(1, 22)]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_the_efficient_variance_is_that_of_the_paper():
    """1 / (2 - 2^-level) for a full block."""
    for level in range(6):
        assert expected_variance(2**level) == pytest.approx(
            1 / (2 - 2.0**-level), rel=1e-9
        )


def test_each_node_is_drawn_once():
    """16 leaves have 31 nodes."""
    rows, draws = coefficients(16), 31

    is_used = rows.any(axis=0)
    assert is_used[:draws].all()
    assert not is_used[draws:].any()


def test_a_tree_that_is_full_releases_nothing():
    got = constant_noise(9, 1.0, max_levels=3)

    assert np.isfinite(got[:7]).all()
    assert np.isnan(got[7:]).all()


def run(query, values, state=None, seed=3, transform=lambda f: f):
    """Returns the answers for rounds with one scalar record each, and more."""

    def one_round(state, value):
        sample = accumulated(query, state, tf.zeros([]), tf.reshape(value, [1]))
        return query.get_noised_result(sample, state)

    one_round = transform(one_round)
    state = query.initial_global_state(seed) if state is None else state
    answers, events = [], []
    for value in values:
        result = one_round(state, tf.constant(value, tf.float32))
        state = result.global_state
        answers.append(float(result.value))
        events.extend(query.ledger_events(result.event, "r"))
    return np.array(answers), events, state


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (10.0, np.cumsum(range(7))),
        (0.5, 0.5 * np.arange(7)),
        (5.0, [0, 1, 3, 6, 10, 15, 20]),
    ],
)
def test_partial_sums_without_noise(clip, expected):
    query = TreeResidualSumQuery.build_l2_gaussian_query(clip, 0.0, SCALAR)

    answers, _, _ = run(query, range(7))

    np.testing.assert_array_equal(np.cumsum(answers), expected)


@pytest.mark.full
def test_xla_and_graphs_make_the_same_tree():
    """Integers of a seed are the same under XLA, its normals are not."""
    query = RestartQuery(TreeResidualSumQuery(1.0, 0.0, SCALAR), period=3)
    values = np.arange(8) / 8
    state = query.initial_global_state(1)
    eager = run(query, values, state)
    for transform in (
        tf.function,
        functools.partial(tf.function, jit_compile=True),
    ):
        answers, events, _ = run(query, values, state, transform=transform)

        np.testing.assert_allclose(answers, eager[0], atol=1e-6)
        assert events == eager[1]


class TestRestarts:
    @pytest.mark.parametrize("period", [1, 2, 5])
    def test_are_periodic(self, period):
        query = RestartQuery(TreeResidualSumQuery(1.0, 2.0, SCALAR), period)

        _, events, _ = run(query, [0.5] * 12)

        ids = [event.tree_id for event in events]
        for i in range(1, 12):
            assert (ids[i] != ids[i - 1]) == (i % period == 0)

    @pytest.mark.parametrize("period", [0, -1])
    def test_have_a_positive_period(self, period):
        with pytest.raises(ValueError, match="`period` must be"):
            RestartQuery(TreeResidualSumQuery(1.0, 2.0, SCALAR), period)

    def test_have_trees_of_different_ids(self):
        query = RestartQuery(
            TreeResidualSumQuery(1.0, 2.0, SCALAR),
            period=4,
        )

        _, events, state = run(query, [0.5] * 12)

        ids = [event.tree_id for event in events]
        assert ids == [ids[0]] * 4 + [ids[4]] * 4 + [ids[8]] * 4
        assert len(set(ids)) == 3
        (planned,) = query.ledger_events(query.planned_event(state), "r")
        assert planned.tree_id not in ids

    def test_plan_the_next_tree_before_it_begins(self):
        query = RestartQuery(
            TreeResidualSumQuery(1.0, 2.0, SCALAR),
            period=2,
        )
        assert query.adapts
        state = query.initial_global_state()
        for _ in range(5):
            planned = query.ledger_events(query.planned_event(state))

            _, released, state = run(query, [0.5], state)

            assert [e.tree_id for e in released] == [e.tree_id for e in planned]

    def test_need_something_to_restart(self):
        with pytest.raises(TypeError, match="`inner_query` must be"):
            RestartQuery(GaussianSumQuery(1.0, 1.0), 2)


def test_a_restored_state_starts_another_tree():
    """Public fields are saved, seeds and `secret_` fields are not."""
    query = TreeResidualSumQuery(1.0, 2.0, SCALAR)
    _, events, state = run(query, [0.5] * 5)
    saved = []

    def add_variable(shape, initializer, dtype, name):
        variable = tf.Variable(tf.zeros(shape, dtype))
        saved.append((name, variable))
        return variable

    StateVariables(state, add_variable)
    names = {name for name, _ in saved}
    assert not names

    fresh = query.initial_global_state(99)
    restored = state._replace(secret_tree=fresh.secret_tree)
    later, others, _ = run(query, [0.5] * 5, restored)

    assert {e.tree_id for e in others}.isdisjoint({e.tree_id for e in events})
    # As if another run had begun.
    alone, _, _ = run(query, [0.5] * 5, fresh)
    np.testing.assert_allclose(later, alone, atol=1e-5)


class TestIds:
    def first_id(self, query, seed=None):
        state = query.initial_global_state(seed)
        (event,) = query.ledger_events(query.planned_event(state))
        return event.tree_id

    def test_are_128_random_bits(self):
        query = TreeResidualSumQuery(1.0, 2.0, SCALAR)
        ids = [self.first_id(query) for _ in range(50)]

        assert len(set(ids)) == 50
        assert all(len(one) == 32 and int(one, 16) >= 0 for one in ids)
        # Two runs of one seed are two trees.
        assert self.first_id(query, 4) != self.first_id(query, 4)

    def test_say_nothing_of_the_seed_of_the_noise(self):
        tree = TreeResidualSumQuery(1, 2, SCALAR).initial_global_state(4)
        one, two = tree.secret_tree.tree_id, tree.secret_tree.noise.seed

        assert not np.isin(one, two).any()

    def test_differ_between_the_trees_of_a_round(self):
        query = NestedQuery([TreeResidualSumQuery(1, 2, SCALAR)] * 2)
        state = query.initial_global_state(4)

        events = query.ledger_events(query.planned_event(state), "r")

        assert [event.name for event in events] == ["r/0", "r/1"]
        assert events[0].tree_id != events[1].tree_id
        assert all(isinstance(event, TreeSum) for event in events)


class TestSpecs:
    NEST = {"a": [tf.TensorSpec([2]), (tf.TensorSpec([], tf.float64),)]}  # noqa: RUF012

    def test_survive_a_saved_model(self):
        query = TreeResidualSumQuery(1.0, 2.0, self.NEST, max_levels=5)
        config = keras.saving.serialize_keras_object(query)

        loaded = keras.saving.deserialize_keras_object(config)

        assert loaded == query
        assert loaded.record_specs == self.NEST
        assert hash(loaded) == hash(query)

    def test_give_sums_their_dtype(self):
        query = TreeResidualSumQuery(1.0, 2.0, self.NEST)
        noise = query.initial_global_state().secret_tree.total

        assert noise["a"][1][0].dtype == tf.float64
        assert noise["a"][0].shape == [2]

    @pytest.mark.parametrize(
        ("specs", "error"),
        [
            ([], ValueError),
            (tf.TensorSpec([None, 2]), ValueError),
            (tf.TensorSpec([2], tf.int32), TypeError),
            ([2, 3], TypeError),
        ],
    )
    def test_are_known_shapes_of_floats(self, specs, error):
        with pytest.raises(error, match="`record_specs` must"):
            TreeResidualSumQuery(1.0, 2.0, specs)

    @pytest.mark.parametrize(
        "template", [tf.zeros([3]), [tf.zeros([2])], tf.zeros([])]
    )
    def test_are_those_of_the_records(self, template):
        query = TreeResidualSumQuery(1.0, 2.0, tf.TensorSpec([2]))

        with pytest.raises(ValueError, match="`template` must have"):
            query.initial_sample_state(template)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"l2_norm_clip": -1.0}, ValueError),
        ({"stddev": math.nan}, ValueError),
        ({"max_levels": 0}, ValueError),
        ({"max_levels": 63}, ValueError),
        ({"max_levels": 2.0}, TypeError),
    ],
)
def test_impossible_arguments_are_refused(change, error):
    query = TreeResidualSumQuery(1.0, 2.0, SCALAR)

    with pytest.raises(error, match="must be"):
        dataclasses.replace(query, **change)


def test_the_builder_speaks_of_multiples_of_the_clip():
    query = TreeResidualSumQuery.build_l2_gaussian_query(0.5, 3.0, SCALAR)

    assert (query.l2_norm_clip, query.stddev) == (0.5, 1.5)
    for arguments in ((0.0, 1.0), (-1.0, 1.0), (1.0, -1.0)):
        with pytest.raises(ValueError, match="must be finite and"):
            TreeResidualSumQuery.build_l2_gaussian_query(*arguments, SCALAR)
